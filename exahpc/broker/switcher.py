"""The hands of `rollout`: journal first, then the folder, then the agents; one deed after the other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from exahpc.broker.journal import Journal
from exahpc.broker.memory import Memory
from exahpc.broker.memory import Rollout as Record
from exahpc.broker.rollout import Rollout
from exahpc.broker.values import InForce, RolloutMoved, Switch
from exahpc.broker.versions import RolloutState
from exahpc.deployment import parse, policy, versions
from exahpc.deployment.spec import Deployment
from exahpc.errors import ExahpcError
from exahpc.wire.folder import Folder
from exahpc.wire.messages import SwitchVersion

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
    """tell: sends a message to a task's agent, when one is there; now: the broker's clock."""

    def __init__(
        self,
        folder: Folder,
        deployment: Deployment,
        journal: Journal,
        epoch: int,
        tell: Callable[[str, SwitchVersion], None],
        now: Callable[[], float],
    ) -> None:
        self._folder, self._deployment, self._journal = folder, deployment, journal
        self._epoch, self._tell, self._now = epoch, tell, now
        self._turn = asyncio.Lock()  # fair: who comes first is served first

    async def gates(self, version: str) -> policy.Rollout:
        """The `[rollout]` table of a version that may be switched to.

        Raises DeploymentError when there is no such version, or it differs in what cannot change.
        """
        if version:
            versions.check_label(version)
        text = await asyncio.to_thread(self._folder.version_toml, version)
        found = parse.load(text, f"{version}.toml")
        versions.check(self._deployment, found, f"{version}.toml")
        return found.rollout

    async def perform(self, action: RolloutMoved | Switch | InForce) -> None:
        """A failure is logged: the rollout sees that nothing has changed, and asks again."""
        async with self._turn:
            try:
                match action:
                    case RolloutMoved():
                        await self._journal.durable(Record(at=self._now(), state=action.state))
                    case InForce():
                        await asyncio.to_thread(self._folder.put_in_force, action.version)
                    case Switch():
                        pool, _, task = action.key.rpartition("/")
                        await asyncio.to_thread(self._folder.assign, pool, int(task), action.version)
                        self._tell(action.key, SwitchVersion(self._epoch, action.version, action.seconds))
            except OSError as error:
                _log.error("%s cannot be noted in the folder: %s", action, error)
