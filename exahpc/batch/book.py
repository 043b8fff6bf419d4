"""Where every row of one batch is: waiting, leased, or done. Pure; the state is the fold of the commit journal.

Law: each row is in exactly one of `pending`, `isolated`, one lease's `held`, or done; it becomes done once.

A row that ends agents would come back for ever. So it is counted how often that happened under a row: from the
second time on it is leased alone, and in the end not run any more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from exahpc.batch.commits import AnyEvent, Blamed, Closed, Commit, Granted, Opened, Returned
from exahpc.batch.intervals import Intervals, Ranges, count
from exahpc.errors import StateError

ISOLATED = 2
"""Times that an agent was lost with a row after which it is leased alone."""
GIVEN_UP = 6
"""... and after which it becomes an error record: more than bad luck brings, run alone four times."""


@dataclass
class Lease:
    """Rows that one agent works on. since: time of the grant or of the last progress; soft: was asked to hand
    back what it did not start; closing: ends when its agent's journals have been looked through; unheard: granted
    by an earlier broker, and the time until which its agent must say that it still holds it; alone: of an isolated
    row."""

    lease: int
    agent: str
    held: Intervals
    since: float
    soft: bool = False
    closing: bool = False
    unheard: float | None = None
    alone: bool = False


@dataclass
class Book:
    """rows: all rows; bad: ranges of rows that were error records from the start; pending: rows that anybody may
    take; isolated: rows that wait to be run alone."""

    rows: int
    bad: Ranges
    pending: Intervals = field(init=False)
    isolated: Intervals = field(init=False, default_factory=Intervals)
    leases: dict[int, Lease] = field(init=False, default_factory=dict)
    ok: int = field(init=False, default=0)
    failed: int = field(init=False)

    def __post_init__(self) -> None:
        self._blamed = [
            Intervals() for _ in range(GIVEN_UP)
        ]  # [n]: rows not done that were blamed more than n times
        self.pending = Intervals([(0, self.rows)])
        self.failed = count(self.bad)
        if count(self.pending.remove_all(self.bad)) != self.failed:
            raise StateError(f"bad rows {self.bad} overlap or lie outside of {self.rows} rows")

    @property
    def done(self) -> bool:
        return self.ok + self.failed == self.rows

    @property
    def leased(self) -> int:
        return sum(len(lease.held) for lease in self.leases.values())

    @property
    def waiting(self) -> int:
        """Rows that nobody works on."""
        return len(self.pending) + len(self.isolated)

    def given_up(self, row: int) -> bool:
        """Whether it was blamed too often to be run again."""
        return row in self._blamed[GIVEN_UP - 1]

    def open_rows(self, ranges: Ranges) -> Ranges:
        """Those of these rows that are not done."""
        places = [self.pending, self.isolated, *(lease.held for lease in self.leases.values())]
        return [common for place in places for common in place.common(ranges)]

    def apply(self, event: AnyEvent, now: float) -> None:
        """Change the state. Raises StateError for an event that cannot follow on what happened before."""
        match event:
            case Opened():
                pass
            case Granted(lease, agent, first, last):
                alone = first in self.isolated
                taken = (self.isolated if alone else self.pending).remove(first, last)
                if taken != [(first, last)] or lease in self.leases:
                    raise StateError(f"rows [{first}, {last}) cannot be leased as {lease}: of them {taken} wait")
                self.leases[lease] = Lease(lease, agent, Intervals(taken), now, alone=alone)
            case Commit():
                self._commit(event, now)
            case Returned(lease, rows):
                held = self._lease(event, lease)
                self._put_back(held.held.remove_all(rows))
                self._drop_if_empty(held)
            case Blamed(rows):
                for fewer, more in reversed(list(pairwise(self._blamed))):
                    for first, last in fewer.common(rows):
                        more.add(first, last)
                for first, last in rows:
                    self._blamed[0].add(first, last)
            case Closed(lease):
                self._put_back(list(self._lease(event, lease).held))
                del self.leases[lease]

    def _put_back(self, rows: Ranges) -> None:
        for first, last in rows:
            self.pending.add(first, last)
        for first, last in self._blamed[ISOLATED - 1].common(rows):
            self.pending.remove(first, last)
            self.isolated.add(first, last)

    def _lease(self, event: AnyEvent, lease: int) -> Lease:
        if lease not in self.leases:
            raise StateError(f"{event} names a lease that is not open")
        return self.leases[lease]

    def _commit(self, event: Commit, now: float) -> None:
        wanted = [*event.rows, *event.bad]
        own = self.leases.get(event.lease)
        moved = 0
        if own is not None:
            own.since = now
            moved = count(own.held.remove_all(wanted))
            self._drop_if_empty(own)
        if moved < event.size:  # found in a journal: the row may wait, or be leased to somebody else
            moved += count(self.pending.remove_all(wanted)) + count(self.isolated.remove_all(wanted))
            for lease in list(self.leases.values()):
                moved += count(lease.held.remove_all(wanted))
                self._drop_if_empty(lease)
        if moved != event.size:
            raise StateError(f"{event} commits rows that are done already")
        for blamed in self._blamed:
            if blamed:
                blamed.remove_all(wanted)
        self.ok += count(event.rows)
        self.failed += count(event.bad)

    def _drop_if_empty(self, lease: Lease) -> None:
        if not lease.held:
            self.leases.pop(lease.lease, None)
