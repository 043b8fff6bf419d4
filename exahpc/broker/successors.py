"""Does what `succession` decides: submits successors, cancels what is not needed, journals both.

A submission is journalled before and after, so that a broker that dies in between leaves a successor who waits for
the job to show up instead of submitting it again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, assert_never

from exahpc.broker.fleet import Fleet
from exahpc.broker.journal import Journal
from exahpc.broker.lineage import Cancel, Promote, Succeed
from exahpc.broker.memory import Ended, Heir, Learns, Replaced, Sample
from exahpc.broker.recovery import Act, Recovery
from exahpc.broker.succession import Succession
from exahpc.broker.values import AgentView, FleetAction
from exahpc.errors import ExahpcError
from exahpc.slurm.api import Unanswered
from exahpc.wire.messages import DrainAgent, ReplicaState

if TYPE_CHECKING:
    from exahpc.broker.cluster import Cluster

_log = logging.getLogger(__name__)


class Successors:
    """The loop around Succession."""

    def __init__(
        self,
        cluster: Cluster,
        succession: Succession,
        recovery: Recovery,
        fleet: Fleet,
        journal: Journal,
        now: Callable[[], float],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._cluster, self.succession, self._recovery = cluster, succession, recovery
        self._fleet, self._journal, self._now, self._spawn = fleet, journal, now, spawn
        self._known: dict[str, str] = {}  # task -> successor, as journalled

    # --- events ----------------------------------------------------------------------------------------------

    def up(self, view: AgentView) -> None:
        self._learn(view.pool, "wait", self.succession.up(view, self._now()))

    def coming(self, view: AgentView) -> None:
        self._learn(view.pool, "wait", self.succession.coming(view, self._now()))

    def lapsed(self, view: AgentView) -> None:
        self.succession.lapsed(view, self._now())

    def loaded(self, view: AgentView, seconds: float) -> None:
        self._recovery.loaded(view.key)
        self.succession.loaded(view.pool, seconds)
        self._learn(view.pool, "load", seconds)

    def _learn(self, pool: str, what: Learns, seconds: float | None) -> None:
        if seconds is not None:
            self._journal.append(Sample(at=self._now(), pool=pool, what=what, seconds=seconds))

    def retired(self, key: str, job: str) -> None:
        self.succession.retired(key, job, self._now())
        self._journal.append(Replaced(at=self._now(), job=job))

    def heard(self, key: str, replicas: Sequence[ReplicaState]) -> list[FleetAction]:
        """An agent that drains by itself is about to hand its task back to Slurm: not when it has a successor."""
        if not any(replica.phase == "draining" for replica in replicas) or self._fleet.serving(key):
            return []
        if not self.succession.warn(key):
            return []
        why = f"its successor {self.succession.heir(key)} is under way"
        return self._fleet.order(key, DrainAgent(self._fleet.epoch, self.succession.drain_seconds, why))

    # --- deeds -----------------------------------------------------------------------------------------------

    def turn(self, absent: Sequence[AgentView], parked: set[str], *, frozen: bool) -> None:
        """Decide, and begin what was decided."""
        for act in self.succession.decide(absent, parked, self._now(), frozen=frozen):
            match act:
                case Promote(key, job, old):
                    _log.warning("%s lives in job %s now, %s is over", key, job, old)
                    now = self._now()
                    self._recovery.promote(key, job, now)
                    self._journal.append(Replaced(at=now, job=old))
                    self._journal.append(Ended(at=now, key=key, kind="resubmit", job=job, error=""))
                case Succeed():
                    self._spawn(self._submit(act))
                case Cancel():
                    self._spawn(self._cancel(act))
                case _:
                    assert_never(act)
        self._remember()

    def _remember(self) -> None:
        """Journal the successors that came or went otherwise than by `_submit`."""
        heirs = self.succession.all_heirs()
        for key in self._known.keys() - heirs.keys():
            self._journal.append(Heir(at=self._now(), key=key, job="", over=True))
        for key, job in heirs.items():
            if self._known.get(key) != job:
                self._journal.append(Heir(at=self._now(), key=key, job=job))
        self._known = heirs

    async def _submit(self, act: Succeed) -> None:
        job, error, unknown = "", "", False
        try:
            await self._journal.durable(Heir(at=self._now(), key=act.key, job=""))
            _log.info("submitting the successor of %s: %s", act.key, act.why)
            exclude = self._recovery.avoid(self._now())
            job = await self._cluster.perform(Act(act.key, "resubmit", "", "", exclude, act.why))
        except (ExahpcError, OSError) as refused:
            error, unknown = str(refused), isinstance(refused, Unanswered)
            _log.error("the successor of %s was not submitted: %s", act.key, error)
        now = self._now()
        if job:
            self._fleet.submitted(job)
            self._recovery.submitted(job)
        self.succession.submitted(act.key, job, error, now, unknown=unknown)
        if not unknown:  # else it stays in the journal as one that is asked for
            self._known[act.key] = job
            self._journal.append(Heir(at=now, key=act.key, job=job, over=bool(error)))

    async def _cancel(self, act: Cancel) -> None:
        _log.warning("cancelling job %s of %s: %s", act.job, act.key, act.why)
        try:
            await self._cluster.perform(Act(act.key, "cancel", act.job, "", (), act.why))
        except ExahpcError as refused:  # looked at again with the next of Slurm's answers
            _log.error("job %s was not cancelled: %s", act.job, refused)
