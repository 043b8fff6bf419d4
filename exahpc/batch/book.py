"""Where every row of one batch is: waiting, leased, or done. Pure; the state is the fold of the commit journal.

Law: each row is in exactly one of `pending`, one lease's `held`, or done; it becomes done once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from exahpc.batch.commits import AnyEvent, Closed, Commit, Granted, Opened, Returned
from exahpc.batch.intervals import Intervals, Ranges, count
from exahpc.errors import StateError


@dataclass
class Lease:
    """Rows that one agent works on. since: time of the grant or of the last progress; soft: was asked to hand
    back what it did not start; closing: ends when its agent's journals have been looked through; unheard: granted
    by an earlier broker, and the time until which its agent must say that it still holds it."""

    lease: int
    agent: str
    held: Intervals
    since: float
    soft: bool = False
    closing: bool = False
    unheard: float | None = None


@dataclass
class Book:
    """rows: all rows; bad: ranges of rows that were error records from the start."""

    rows: int
    bad: Ranges
    pending: Intervals = field(init=False)
    leases: dict[int, Lease] = field(init=False, default_factory=dict)
    ok: int = field(init=False, default=0)
    failed: int = field(init=False)

    def __post_init__(self) -> None:
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

    def open_rows(self, ranges: Ranges) -> Ranges:
        """Those of these rows that are not done."""
        places = [self.pending, *(lease.held for lease in self.leases.values())]
        return [common for place in places for common in place.common(ranges)]

    def apply(self, event: AnyEvent, now: float) -> None:
        """Change the state. Raises StateError for an event that cannot follow on what happened before."""
        match event:
            case Opened():
                pass
            case Granted(lease, agent, first, last):
                taken = self.pending.remove(first, last)
                if taken != [(first, last)] or lease in self.leases:
                    raise StateError(f"rows [{first}, {last}) cannot be leased as {lease}: of them {taken} wait")
                self.leases[lease] = Lease(lease, agent, Intervals(taken), now)
            case Commit():
                self._commit(event, now)
            case Returned(lease, rows):
                held = self._lease(event, lease)
                for first, last in held.held.remove_all(rows):
                    self.pending.add(first, last)
                self._drop_if_empty(held)
            case Closed(lease):
                for first, last in self._lease(event, lease).held:
                    self.pending.add(first, last)
                del self.leases[lease]

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
            moved += count(self.pending.remove_all(wanted))
            for lease in list(self.leases.values()):
                moved += count(lease.held.remove_all(wanted))
                self._drop_if_empty(lease)
        if moved != event.size:
            raise StateError(f"{event} commits rows that are done already")
        self.ok += count(event.rows)
        self.failed += count(event.bad)

    def _drop_if_empty(self, lease: Lease) -> None:
        if not lease.held:
            self.leases.pop(lease.lease, None)
