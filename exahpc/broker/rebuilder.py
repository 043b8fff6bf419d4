"""Asks Slurm what `recovery` wants to know, and does what it decides.

Each deed is journalled before and after, so that a broker that dies in between leaves a successor who waits and
looks instead of doing it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from exahpc.broker.fleet import Fleet
from exahpc.broker.journal import Journal
from exahpc.broker.memory import Begun, Ended, Excluded, NoRequeue
from exahpc.broker.recovery import Act, Recovery
from exahpc.broker.values import AgentView
from exahpc.errors import ExahpcError
from exahpc.slurm.api import RequeueDisabled

if TYPE_CHECKING:
    from exahpc.broker.cluster import Cluster

_log = logging.getLogger(__name__)


class Rebuilder:
    """The loop around Recovery. draining: set for good when the deployment is taken down."""

    def __init__(
        self,
        cluster: Cluster,
        recovery: Recovery,
        fleet: Fleet,
        journal: Journal,
        now: Callable[[], float],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._cluster, self.recovery, self._fleet, self._journal = cluster, recovery, fleet, journal
        self._now, self._spawn = now, spawn
        self.draining = False
        self._arrays: set[str] = set()  # that stand in the job book
        self._trouble: tuple[float, str] | None = None

    def up(self, view: AgentView) -> None:
        """An agent said hello."""
        self.recovery.up(view.key, view.job)
        array = view.job.partition("_")[0]
        if array and array not in self._arrays:
            self._arrays.add(array)
            self._spawn(self._adopt(view.pool, array))

    def notes(self, now: float) -> list[str]:
        """For `status`."""
        if self._trouble is None:
            return []
        since, why = self._trouble
        return [f"Slurm could not be asked for {now - since:.0f} s, its last answers are shown: {why}"]

    async def watch(self) -> None:
        while not self.draining:
            await self.turn()
            await asyncio.sleep(1.0)

    async def turn(self) -> None:
        """Ask if it is time to, decide, and begin what was decided."""
        now = self._now()
        if self.recovery.query_due(now, absent=any(True for _ in self._fleet.absent())):
            await self._query(now)
        for act in self.recovery.decide(self._fleet.absent(), self._now()):
            self._spawn(self._perform(act))

    async def _query(self, asked: float) -> None:
        try:
            pools, records = await self._cluster.query(self.recovery.arrays())
        except ExahpcError as error:  # never means that a job failed: the last answer stays
            self._trouble = self._trouble or (asked, str(error))
            _log.warning("Slurm cannot be asked: %s", error)
            return
        self._trouble = None
        for pool, arrays in pools.items():
            self._arrays.update(arrays)
            self.recovery.placed(pool, arrays, records)
        self.recovery.answered(records, asked)

    async def _perform(self, act: Act) -> None:
        await self._journal.durable(Begun(at=self._now(), key=act.key, kind=act.kind, job=act.job))
        if act.suspect:
            self._journal.append(Excluded(at=self._now(), node=act.suspect, why=f"{act.key}: {act.why}"))
        job, error, disabled = act.job, "", False
        try:
            if self.draining or self._fleet.peer_of(act.key) is not None:
                error = "not needed any more"
            else:
                _log.warning("%s %s (job %s): %s", act.kind, act.key, act.job, act.why)
                job = await self._cluster.perform(act)
        except ExahpcError as refused:
            error, disabled = str(refused), isinstance(refused, RequeueDisabled)
            _log.error("%s of %s failed: %s", act.kind, act.key, refused)
        now = self._now()
        if self.recovery.done(act.key, act.kind, job, error, now, disabled=disabled):
            pool = act.key.rpartition("/")[0]
            _log.warning("pool %s: this site does not requeue; lost tasks are resubmitted", pool)
            self._journal.append(NoRequeue(at=now, pool=pool, why=error))
        await self._journal.durable(Ended(at=now, key=act.key, kind=act.kind, job=job, error=error))

    async def _adopt(self, pool: str, array: str) -> None:
        try:
            await self._cluster.adopt(pool, array)
        except ExahpcError as error:
            _log.warning("array %s could not be noted for `down`: %s", array, error)
