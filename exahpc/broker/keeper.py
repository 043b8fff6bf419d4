"""What is done about tasks beyond words to their agents: with Slurm, and with the local launcher.

A keeper hears what the fleet hears. `OnCluster` has tasks requeued, submitted and succeeded; `Local` can only tell
supervisors which tasks are wanted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from exahpc.broker.fleet import Fleet
from exahpc.broker.journal import Journal
from exahpc.broker.memory import Memory
from exahpc.broker.parking import Parking
from exahpc.broker.rebuilder import Rebuilder
from exahpc.broker.recovery import Recovery
from exahpc.broker.succession import Succession
from exahpc.broker.successors import Successors
from exahpc.broker.values import AgentView, FleetAction
from exahpc.deployment.spec import Deployment
from exahpc.errors import ExahpcError
from exahpc.wire.folder import Folder
from exahpc.wire.messages import ReplicaState

if TYPE_CHECKING:
    from exahpc.broker.cluster import Cluster

COMING_SECONDS = 5.0  # wait of a drain for agents that have not said hello yet
GOOD_BYE_SECONDS = 2.0  # agents that said good-bye end their jobs by themselves
_log = logging.getLogger("exahpc.broker")


class Keeper(Protocol):
    """Time is the broker's clock."""

    @property
    def recovery(self) -> Recovery | None:
        """What is known of the tasks' jobs; None where there are none."""
        ...

    @property
    def leaves(self) -> Mapping[str, str]:
        """Node -> leaf switch, as far as known."""
        ...

    @property
    def coming_seconds(self) -> float:
        """How long a drain waits for agents that have not said hello yet."""
        ...

    def up(self, view: AgentView) -> None:
        """An agent said hello."""
        ...

    def coming(self, view: AgentView) -> None:
        """So did a successor."""
        ...

    def lapsed(self, view: AgentView) -> None:
        """A successor is gone."""
        ...

    def loaded(self, view: AgentView, seconds: float) -> None:
        """All replicas of an agent are ready, so long after its hello."""
        ...

    def retired(self, key: str, job: str) -> None:
        """The task lives in another job."""
        ...

    def heard(self, key: str, replicas: Sequence[ReplicaState]) -> list[FleetAction]:
        """News of an agent's replicas."""
        ...

    def tick(self, *, frozen: bool) -> None:
        """Call about once a second. frozen: no node may be asked for."""
        ...

    def notes(self, now: float) -> list[str]:
        """For `status`."""
        ...

    def drain(self) -> None:
        """The deployment is taken down: no task is brought back any more."""
        ...

    async def watch(self) -> None:
        """Runs as long as the broker."""
        ...

    async def finish(self) -> None:
        """The agents have ended, or had their time: end what is left."""
        ...


class OnCluster:
    """Tasks are elements of job arrays."""

    coming_seconds = 0.0  # their jobs are cancelled

    def __init__(
        self,
        cluster: Cluster,
        deployment: Deployment,
        memory: Memory,
        fleet: Fleet,
        journal: Journal,
        now: Callable[[], float],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._cluster = cluster
        self.recovery = Recovery(deployment, memory, now(), dice=random.random)
        succession = Succession(deployment, memory, now())
        self._successors = Successors(cluster, succession, self.recovery, fleet, journal, now, spawn)
        self._rebuilder = Rebuilder(cluster, self.recovery, self._successors, fleet, journal, now, spawn)
        self.up, self.notes, self.watch = self._rebuilder.up, self._rebuilder.notes, self._rebuilder.watch
        self.coming, self.lapsed = self._successors.coming, self._successors.lapsed
        self.loaded, self.retired = self._successors.loaded, self._successors.retired
        self.heard = self._successors.heard

    @property
    def leaves(self) -> Mapping[str, str]:
        return self.recovery.network.leaves

    def tick(self, *, frozen: bool) -> None:
        self._rebuilder.frozen = frozen

    def drain(self) -> None:
        self._rebuilder.draining = True

    async def finish(self) -> None:
        await asyncio.sleep(GOOD_BYE_SECONDS)
        try:
            await self._cluster.cancel_pools()
        except ExahpcError as error:
            _log.error("the pools' jobs could not be cancelled, `exahpc down` tries again: %s", error)


class Local:
    """Tasks are scripts on this machine: each is its own supervisor, and waits for a mark while it is parked."""

    recovery = None
    leaves: Mapping[str, str] = {}
    coming_seconds = COMING_SECONDS  # nobody but us tells an agent that is just coming up

    def __init__(self, folder: Folder, deployment: Deployment, fleet: Fleet) -> None:
        self._parking, self._fleet = Parking(folder, deployment), fleet
        self._draining = False

    def up(self, view: AgentView) -> None:
        pass

    def coming(self, view: AgentView) -> None:
        pass

    def lapsed(self, view: AgentView) -> None:
        pass

    def loaded(self, view: AgentView, seconds: float) -> None:
        pass

    def retired(self, key: str, job: str) -> None:
        pass

    def heard(self, key: str, replicas: Sequence[ReplicaState]) -> list[FleetAction]:
        return []

    def tick(self, *, frozen: bool) -> None:
        if not self._draining:
            with contextlib.suppress(OSError):  # a full disk: what is not marked yet is due at the next tick
                self._parking.sync(self._fleet.parked)

    def notes(self, now: float) -> list[str]:
        return []

    def drain(self) -> None:
        """Before agents end: their supervisors look whether they are wanted again."""
        self._draining = True
        self._parking.end()

    async def watch(self) -> None:
        pass

    async def finish(self) -> None:
        pass
