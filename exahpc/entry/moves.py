"""What can be done with a request: send it, take it back, end it. The books stay right with every move. Pure."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from exahpc.deployment.spec import Deployment
from exahpc.entry.actions import Action, Refuse, Tell
from exahpc.entry.admission import Admission
from exahpc.entry.fleet import Replica
from exahpc.entry.interruptions import Interruptions
from exahpc.entry.ledger import Ledger, Record
from exahpc.entry.pace import Pace
from exahpc.entry.routing import Router
from exahpc.errors import RequestError
from exahpc.telemetry.logs import told
from exahpc.telemetry.stories import Stories
from exahpc.wire.messages import Cancel

log = logging.getLogger(__name__)

_PROBATIONS = 1 / 4  # share of the replicas on which requests of this entry may run alone at once; one at least


@dataclass(slots=True)
class Counts:
    """Requests ended so far, and tokens; reasons: why this entry itself ended some, by the error's code."""

    done: int = 0
    failed: int = 0
    rejected: int = 0
    cancelled: int = 0
    resent: int = 0
    busy: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


def named(record: Record, *, attempt: int = 0, **fields: object) -> dict[str, Any]:
    """For `extra=` of a log line about this request."""
    trace, number = record.trace, attempt or record.attempt or None
    return told(request=record.id, trace=trace.id, client=trace.request, attempt=number, **fields)


class Moves:
    """Ledger, admission and routing, moved together. draw(n): random whole number < n."""

    def __init__(self, deployment: Deployment, draw: Callable[[int], int], node: str) -> None:
        limits = deployment.limits
        self.router = Router(draw, deployment.routing, node)
        self.ledger = Ledger()
        self.pace = Pace(draw)
        self.admission = Admission(limits.max_waiting, limits.max_waiting_per_key, self.pace)
        self.interruptions = Interruptions(limits.attempts)
        self.counts = Counts()
        self.stories = Stories()
        self._alone = 0  # requests that run alone
        self._most_alone = 1

    def pick(self, record: Record, now: float, waited: float = 0.0) -> Replica | None:
        """The replica for a request that has waited so many seconds, or None when none can take it now."""
        if record.alone:
            return self._quietest(record, now)
        return self.router.pick(record, now, waited)

    def _quietest(self, record: Record, now: float) -> Replica | None:
        """The replica with the least to do: its agent empties it for a request that runs alone."""
        if self._alone >= self._most_alone:
            return None
        agents = (a for a in self.router.agents.values() if record.version in (None, a.version))
        takers = [r for agent in agents for r in agent.replicas.values() if r.place >= 0 and not r.probe]
        return min(takers, key=lambda replica: replica.load(now), default=None)

    def count_probations(self) -> None:
        """How many may run alone at once: counting the fleet takes too long to do it for each of them."""
        self._most_alone = max(1, int(_PROBATIONS * self.router.ready))

    def send(self, record: Record, replica: Replica, now: float) -> Tell:
        if record.told:
            waited, attempt = now - record.since, record.attempt + 1
            log.info("it goes to %s after %.3f s in line", replica, waited, extra=named(record, attempt=attempt))
        self.router.take(replica, record.sequences, record.tokens)
        self._alone += record.alone
        return Tell(replica.agent, self.ledger.send(record, replica, now))

    def release(self, record: Record) -> None:
        """It runs no more where it ran."""
        if record.replica is not None:
            self.router.give_back(record.replica, record.sequences, record.tokens)
            self._alone -= record.alone

    @staticmethod
    def free(record: Record) -> list[Action]:
        """Its replica, if it has one, is to drop it."""
        return [] if record.replica is None else [Tell(record.replica.agent, Cancel(record.id))]

    def end(self, record: Record, how: str) -> None:
        self.release(record)
        if record.line is not None:
            self.admission.leave(record)
        self.ledger.end(record, how)

    def refuse(self, record: Record, error: RequestError) -> Refuse:
        """End it with an error of an agent."""
        if error.status < 500:
            self.counts.rejected += 1
        else:
            self.counts.failed += 1
        self.ledger.measured.refused(error.status)
        self.end(record, f"{error.status}")
        return Refuse(record, error)

    def decline(self, record: Record, error: RequestError) -> Refuse:
        """End it with an error of our own."""
        self.counts.reasons[error.code or "other"] += 1
        return self.refuse(record, error)

    def lost(self, record: Record, why: str, now: float, *, own_exit: bool = False) -> list[Action]:
        """The running attempt died. The caller pumps."""
        if record.told or self.stories.problem(now):
            log.warning("it is taken back from %s", record.replica, extra=named(record, why=why))
        self.release(record)
        self.ledger.stop(record, "lost", now, why)
        error = self.interruptions.died(record, why, own_exit=own_exit, now=now)
        if error is not None:
            return [self.decline(record, error)]
        self.counts.resent += 1
        record.lane = self.router.lane(record)
        self.admission.enter_again(record, front=False)
        return []

    def all_lost(self, dead: Callable[[Replica], bool], why: str, now: float) -> list[Action]:
        actions: list[Action] = []
        for record in list(self.ledger.records.values()):
            if record.replica is not None and dead(record.replica):
                actions += self.lost(record, why, now)
        return actions + self.pump(now)

    def pump(self, now: float) -> list[Action]:
        """Send who waits, in order, as long as a replica takes the first one of some lane."""
        actions: list[Action] = []
        if not self.admission.size:
            return actions
        blocked: set[str] = set()
        while (record := self.admission.next(blocked)) is not None:
            replica = self.pick(record, now, now - record.since)
            if replica is None:
                blocked.add(str(record.line))
                continue
            self.admission.take(record)
            actions.append(self.send(record, replica, now))
        return actions
