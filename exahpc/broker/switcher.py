"""The hands of `rollout`: deployment files read, versions noted in the folder, agents told, in this order.

What touches the folder runs on one thread: a task that is moved there and back at once loads the last.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from exahpc.broker.memory import Memory
from exahpc.broker.rollout import Rollout
from exahpc.broker.values import InForce, Switch
from exahpc.broker.versions import RolloutState
from exahpc.deployment import parse, policy, versions
from exahpc.deployment.spec import Deployment
from exahpc.errors import ExahpcError
from exahpc.wire.folder import Folder
from exahpc.wire.messages import SwitchVersion

T = TypeVar("T")
_log = logging.getLogger(__name__)


def restored(folder: Folder, deployment: Deployment, memory: Memory) -> Rollout:
    """The rollout as an earlier broker left it."""
    if memory.rollout is None:
        state = RolloutState(old=folder.version_in_force())
        return Rollout(state, deployment.rollout, deployment.routing.headroom)
    state = memory.rollout.state
    gates = deployment.rollout
    try:
        gates = parse.load(folder.version_toml(state.new)).rollout
    except (ExahpcError, OSError) as error:
        _log.error("%s cannot be read, its gates are those of deployment.toml: %s", state.new, error)
    return Rollout(state, gates, deployment.routing.headroom)


class Switcher:
    """tell: sends a message to a task's agent, when one is there."""

    def __init__(
        self, folder: Folder, deployment: Deployment, epoch: int, tell: Callable[[str, SwitchVersion], None]
    ) -> None:
        self._folder, self._deployment, self._epoch, self._tell = folder, deployment, epoch, tell
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="versions")

    async def gates(self, version: str) -> policy.Rollout:
        """The `[rollout]` table of a version that may be switched to.

        Raises DeploymentError when there is no such version, or it differs in what cannot change.
        """
        text = await self._call(lambda: self._folder.version_toml(version))
        found = parse.load(text, f"{version}.toml")
        versions.check(self._deployment, found, f"{version}.toml")
        return found.rollout

    async def perform(self, action: Switch | InForce) -> None:
        """A failure is logged: the rollout sees that nothing has changed, and asks again."""
        try:
            match action:
                case InForce():
                    await self._call(lambda: self._folder.put_in_force(action.version))
                case Switch():
                    pool, _, task = action.key.rpartition("/")
                    await self._call(lambda: self._folder.assign(pool, int(task), action.version))
                    self._tell(action.key, SwitchVersion(self._epoch, action.version, action.seconds))
        except OSError as error:
            _log.error("%s cannot be noted in the folder: %s", action, error)

    async def _call(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
