"""Asks Slurm what `recovery` and `succession` want to know, and does what recovery decides.

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
from exahpc.broker.successors import Successors
from exahpc.broker.values import AgentView
from exahpc.errors import ExahpcError
from exahpc.slurm.api import RequeueDisabled, Unanswered

if TYPE_CHECKING:
    from exahpc.broker.cluster import Cluster

_log = logging.getLogger(__name__)


class Rebuilder:
    """The loop around Recovery. draining: set for good when the deployment is taken down; frozen: no node may be
    asked for."""

    def __init__(
        self,
        cluster: Cluster,
        recovery: Recovery,
        successors: Successors,
        fleet: Fleet,
        journal: Journal,
        now: Callable[[], float],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._cluster, self.recovery, self._fleet, self._journal = cluster, recovery, fleet, journal
        self.successors, self._succession = successors, successors.succession
        self._now, self._spawn = now, spawn
        self.draining = self.frozen = False
        self._parked: set[str] = set()
        self._arrays: set[str] = set()  # that stand in the job book
        self._trouble: tuple[float, str] | None = None

    def up(self, view: AgentView) -> None:
        """An agent said hello."""
        self.recovery.up(view.key, view.job, view.node)
        self.successors.up(view)
        array = view.job.partition("_")[0]
        if array and array not in self._arrays:
            self._arrays.add(array)
            self._spawn(self._adopt(view.pool, array))

    def notes(self, now: float) -> list[str]:
        """For `status`."""
        lines = self.recovery.notes() + self._succession.notes()
        if self._trouble is None:
            return lines
        since, why = self._trouble
        return [*lines, f"Slurm could not be asked for {now - since:.0f} s, its last answers are shown: {why}"]

    async def watch(self) -> None:
        await self._begin()
        while not self.draining:
            await self.turn()
            await asyncio.sleep(1.0)

    async def turn(self) -> None:
        """Ask if it is time to, decide, and begin what was decided."""
        now = self._now()
        surplus = list(self._fleet.surplus())
        busy = self._succession.curious or any(True for _ in self._fleet.absent())
        if self.recovery.query_due(now, busy):
            await self._query(now)
        now, absent = self._now(), list(self._fleet.absent())
        for view in absent:
            if view.key in self._parked:
                self.recovery.wake(view.key)
        self._parked = {view.key for view in surplus if self._fleet.parked(view.key)}
        self.successors.turn(absent, self._parked, frozen=self.frozen)
        acts = self.recovery.decide(absent, now, self._succession.succeeded())
        for act in acts + self.recovery.surplus(self._fleet.surplus(), now):
            self._spawn(self._perform(act))
        for alert in self.recovery.alerts():
            _log.error("%s", alert)

    async def _begin(self) -> None:
        """What is read once."""
        try:
            self._succession.chained((await self._cluster.book()).chain)
        except (ExahpcError, OSError) as error:
            _log.warning("the job book cannot be read: %s", error)

    async def _query(self, asked: float) -> None:
        try:
            living = self.recovery.arrays() | self._succession.arrays()
            searching = self._succession.searching or self.recovery.searching
            pools, records = await self._cluster.query(living, search=searching)
        except ExahpcError as error:  # never means that a job failed: the last answer stays
            self._trouble = self._trouble or (asked, str(error))
            _log.warning("Slurm cannot be asked: %s", error)
            return
        self._trouble = None
        if not self.recovery.network.known:
            await self._place()
        for pool, arrays in pools.items():
            self._arrays.update(arrays)
            self.recovery.placed(pool, arrays, records, self._now())
        self.recovery.answered(records, asked)
        self._succession.answered(records, asked, self._now())
        self._succession.search(pools, records, self._now())

    async def _place(self) -> None:
        """Until Slurm has said it once: switches that are not known make storms of a single fault."""
        try:
            self.recovery.network.learn(await self._cluster.topology())
        except ExahpcError as error:
            _log.warning("the switches are not known yet: %s", error)

    async def _perform(self, act: Act) -> None:
        job, error, disabled, unknown, tried = act.job, "", False, False, False
        try:
            await self._journal.durable(Begun(at=self._now(), key=act.key, kind=act.kind, job=act.job))
            if act.suspect:
                self._journal.append(Excluded(at=self._now(), node=act.suspect, why=f"{act.key}: {act.why}"))
            if self.draining or self._fleet.peer_of(act.key) is not None:
                error = "not needed any more"
            else:
                _log.warning("%s %s (job %s): %s", act.kind, act.key, act.job, act.why)
                tried = True
                job = await self._cluster.perform(act)
        except OSError as full:  # what no other broker would know of is not done
            error = f"the journal cannot be written: {full}"
            _log.error("%s of %s is not tried: %s", act.kind, act.key, error)
        except ExahpcError as refused:
            error, disabled = str(refused), isinstance(refused, RequeueDisabled)
            unknown = isinstance(refused, Unanswered)
            _log.error("%s of %s failed: %s", act.kind, act.key, refused)
        now = self._now()
        if act.kind == "resubmit" and not error:
            self._fleet.submitted(job)
        how = {"disabled": disabled, "unknown": unknown, "tried": tried}
        if self.recovery.done(act.key, act.kind, job, error, now, **how):
            pool = act.key.rpartition("/")[0]
            _log.warning("pool %s: this site does not requeue; lost tasks are resubmitted", pool)
            self._journal.append(NoRequeue(at=now, pool=pool, why=error))
        if not unknown:  # else it stays in the journal as one whose end nobody knows
            self._journal.append(Ended(at=now, key=act.key, kind=act.kind, job=job, error=error))

    async def _adopt(self, pool: str, array: str) -> None:
        try:
            await self._cluster.adopt(pool, array)
        except ExahpcError as error:
            _log.warning("array %s could not be noted for `down`: %s", array, error)
