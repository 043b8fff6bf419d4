"""Where every row of one batch is: waiting, leased, or done. Pure; the state is the fold of the commit journal.

Law: each row is in exactly one of `pending`, `isolated`, one lease's `held`, or done; it becomes done once. That a
slow row may be run a second time beside its lease is no business of the book: see `broker.doubles`.

A row that ends agents would come back for ever. So it is counted how often that happened under a row: from the
second time on it is leased alone, and in the end not run any more.

Costs: an event touches its own lease and the leases that share blocks of rows with it, never all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

from exahpc.batch.commits import AnyEvent, Blamed, Closed, Commit, Granted, Opened, Returned
from exahpc.batch.folds import BookState, LeaseState
from exahpc.batch.intervals import Intervals, Ranges, count
from exahpc.errors import StateError

K = TypeVar("K")

ISOLATED = 2
"""Times that an agent was lost with a row after which it is leased alone."""
GIVEN_UP = 6
"""... and after which it becomes an error record: more than bad luck brings, run alone four times."""
_BLOCK = 1024
"""Rows a block of the register of holders. About a lease: a lease touches few blocks, a block few leases."""


@dataclass
class Lease:
    """Rows that one agent works on. first, last: what was granted; begun: time of the grant; since: of the grant
    or of the last progress; soft: was asked to hand back what it did not start; closing: ends when its agent's
    journals have been looked through; blameless: its agent was told to end; unheard: granted by an earlier broker,
    and the time until which its agent must say that it still holds it; alone: of an isolated row."""

    lease: int
    agent: str
    first: int
    last: int
    held: Intervals
    begun: float
    since: float
    soft: bool = False
    closing: bool = False
    blameless: bool = False
    unheard: float | None = None
    alone: bool = False

    @property
    def blocks(self) -> range:
        return range(self.first // _BLOCK, (self.last - 1) // _BLOCK + 1)


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
        self._of: dict[str, dict[int, Lease]] = {}
        self._near: dict[int, dict[int, Lease]] = {}  # block -> leases that were granted rows of it
        self.pending = Intervals([(0, self.rows)])
        self.failed = count(self.bad)
        if count(self.pending.remove_all(self.bad)) != self.failed:
            raise StateError(f"bad rows {self.bad} overlap or lie outside of {self.rows} rows")

    @classmethod
    def of_state(cls, state: BookState, bad: Ranges) -> Book:
        """A book as `state` told it. bad: as it was when the first event came."""
        book = cls(state.rows, bad)
        book.ok, book.failed = state.ok, state.failed
        book.pending, book.isolated = Intervals.of_columns(state.pending), Intervals.of_columns(state.isolated)
        book._blamed = [Intervals.of_columns(blamed) for blamed in state.blamed]
        for one in state.leases:
            held = Intervals.of_columns(one.held)
            book._enter(Lease(one.lease, one.agent, one.first, one.last, held, 0.0, 0.0, alone=one.alone))
        return book

    def state(self) -> BookState:
        """All that the events so far have made of it. A copy that other threads may read."""
        leases = [
            LeaseState(lease.lease, lease.agent, lease.first, lease.last, lease.held.columns(), lease.alone)
            for lease in self.leases.values()
        ]
        blamed = [blamed.columns() for blamed in self._blamed]
        waiting = self.pending.columns(), self.isolated.columns()
        return BookState(self.rows, self.ok, self.failed, *waiting, leases, blamed)

    @property
    def done(self) -> bool:
        return self.ok + self.failed == self.rows

    @property
    def waiting(self) -> int:
        """Rows that nobody works on."""
        return len(self.pending) + len(self.isolated)

    @property
    def leased(self) -> int:
        return self.rows - self.ok - self.failed - self.waiting

    def given_up(self, row: int) -> bool:
        """Whether it was blamed too often to be run again."""
        return row in self._blamed[GIVEN_UP - 1]

    def blamed(self, ranges: Ranges) -> bool:
        """Whether one of these rows was in the hands of an agent that was lost."""
        return bool(self._blamed[0].common(ranges))

    @property
    def agents(self) -> frozenset[str]:
        """Those that hold leases."""
        return frozenset(self._of)

    def of(self, agent: str) -> list[Lease]:
        """The leases of an agent."""
        return list(self._of.get(agent, {}).values())

    def holders(self, ranges: Ranges) -> list[Lease]:
        """Leases that hold some of these rows."""
        near: dict[int, Lease] = {}
        for first, last in ranges:
            low, high = first // _BLOCK, (last - 1) // _BLOCK + 1
            blocks: Iterable[int] = range(low, high) if high - low < len(self._near) else list(self._near)
            for block in blocks:
                near.update(self._near.get(block, {}))
        return [lease for lease in near.values() if lease.held.common(ranges)]

    def open_rows(self, ranges: Ranges) -> Ranges:
        """Those of these rows that are not done."""
        places = [self.pending, self.isolated, *(lease.held for lease in self.holders(ranges))]
        return list(Intervals(common for place in places for common in place.common(ranges)))

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
                self._enter(Lease(lease, agent, first, last, Intervals(taken), now, now, alone=alone))
            case Commit():
                self._commit(event, now)
            case Returned(lease, rows):
                held = self._lease(event, lease)
                self._put_back(held.held.remove_all(rows))
                self._leave_if_empty(held)
            case Blamed(rows):
                for fewer, more in reversed(list(pairwise(self._blamed))):
                    for first, last in fewer.common(rows):
                        more.add(first, last)
                for first, last in rows:
                    self._blamed[0].add(first, last)
            case Closed(lease):
                closed = self._lease(event, lease)
                self._put_back(list(closed.held))
                self._leave(closed)

    def _enter(self, lease: Lease) -> None:
        self.leases[lease.lease] = lease
        self._of.setdefault(lease.agent, {})[lease.lease] = lease
        for block in lease.blocks:
            self._near.setdefault(block, {})[lease.lease] = lease

    def _leave(self, lease: Lease) -> None:
        del self.leases[lease.lease]
        for block in lease.blocks:
            _drop(self._near, block, lease.lease)
        _drop(self._of, lease.agent, lease.lease)

    def _leave_if_empty(self, lease: Lease) -> None:
        if not lease.held:
            self._leave(lease)

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
        moved, size = 0, event.size
        own = self.leases.get(event.lease)
        if own is not None:
            own.since = now
            moved = self._take(own, event)
        if moved < size:  # found in a journal: the row may wait, or be leased to somebody else
            wanted = [*event.rows, *event.bad]
            moved += count(self.pending.remove_all(wanted)) + count(self.isolated.remove_all(wanted))
            moved += sum(self._take(lease, event) for lease in self.holders(wanted))
        if moved != size:
            raise StateError(f"{event} commits rows that are done already")
        for blamed in self._blamed:
            if not blamed:
                break
            for done in _both(event):
                blamed.remove(*done)
        bad = count(event.bad)
        self.ok += size - bad
        self.failed += bad

    def _take(self, lease: Lease, event: Commit) -> int:
        """The committed rows leave a lease; returns how many it held."""
        before = len(lease.held)
        for first, last in _both(event):
            lease.held.remove(first, last)
        moved = before - len(lease.held)
        self._leave_if_empty(lease)
        return moved


def _both(event: Commit) -> Iterator[tuple[int, int]]:
    yield from event.rows
    yield from event.bad


def _drop(register: dict[K, dict[int, Lease]], key: K, lease: int) -> None:
    del register[key][lease]
    if not register[key]:
        del register[key]
