"""Which agent runs which rows. Pure: events and a clock reading in, actions out.

Leases are as small as what an agent asks for, and never more than half of its share of what is left, so that
nobody holds much when others have nothing. When nothing is left, agents that idle get what loaded ones have not
begun; when that is gone too, rows that run far longer than others are begun a second time (`doubles`). Rows of a
lost agent return to the pool only after its journals were looked through.

An ask or a report costs the same however many agents and leases there are; what looks at all leases does so once a
second.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Container, Iterable
from dataclasses import dataclass

from exahpc.batch.book import GIVEN_UP, Book, Lease
from exahpc.batch.commits import AnyEvent, Blamed, Closed, Commit, Granted, Returned
from exahpc.batch.intervals import Intervals
from exahpc.batch.salvage import Found
from exahpc.broker.askers import Asker, Askers
from exahpc.broker.doubles import Double, Doubles
from exahpc.broker.evening import even_out
from exahpc.broker.lease_actions import Action, Grant, Log, Revoke, Salvage
from exahpc.errors import StateError
from exahpc.wire.messages import LeaseProgress

LARGEST_LEASE = 512
_GRANTS = 64  # leases in one answer: a pool in shreds must not make one answer endless
_SWEEP_SECONDS = 1.0
STRAGGLER_SECONDS = 30.0
"""Without progress for so long, and longer than leases of its batch usually last in all: a straggler."""


@dataclass
class _Batch:
    """number: of the broker's commit journal; lasts: seconds that its leases last, a decayed mean, if known; held:
    nothing more is begun."""

    book: Book
    number: int
    lasts: float | None = None
    held: bool = False

    def ended(self, seconds: float) -> None:
        self.lasts = seconds if self.lasts is None else self.lasts + (seconds - self.lasts) / 8

    def straggles(self, lease: Lease, now: float) -> bool:
        calm = lease.closing or lease.alone or self.book.blamed(list(lease.held))
        return not calm and now - lease.since > max(STRAGGLER_SECONDS, self.lasts or 0.0)


class Leases:
    """All batches of one broker, oldest first. grace: seconds in which agents that held leases of an earlier
    broker must say hello; stall: seconds without progress after which a lease is taken back."""

    def __init__(self, epoch: int, *, grace: float = 20.0, stall: float = 1800.0) -> None:
        self._epoch, self._grace, self._stall = epoch, grace, stall
        self._batches: dict[str, _Batch] = {}
        self._issued = 0
        self._askers = Askers(lambda agent: any(batch.book.of(agent) for batch in self._batches.values()))
        self._doubles = Doubles()
        self._slow: deque[tuple[str, int]] = deque()
        self._swept = float("-inf")

    def open(self, batch: str, book: Book, number: int, now: float) -> None:
        """Take on a batch in the state its commit journals tell. number: of the broker's commit journal."""
        if batch in self._batches:
            raise StateError(f"batch {batch} is open already")
        self._batches[batch] = _Batch(book, number)
        for lease in book.leases.values():
            lease.begun, lease.since, lease.unheard = now, now, now + self._grace

    def close(self, batch: str, now: float) -> list[Action]:
        """End the leases of a batch and forget it: cancelled, failed or done."""
        leases = list(self._batches[batch].book.leases.values())
        closed = [self._log(batch, Closed(lease.lease), now) for lease in leases]
        del self._batches[batch]
        doubled = [Revoke(double.agent, double.lease) for double in self._doubles.close(batch)]
        return [*closed, *(Revoke(lease.agent, lease.lease) for lease in leases), *doubled]

    def hold(self, batch: str, held: bool) -> None:
        """Whether nothing more of this batch is begun for now. What is in hand goes on, and its reports count."""
        self._batches[batch].held = held

    def book(self, batch: str) -> Book | None:
        found = self._batches.get(batch)
        return found.book if found else None

    def _log(self, batch: str, event: AnyEvent, now: float) -> Log:
        self._batches[batch].book.apply(event, now)
        return Log(batch, event)

    # --- rows go out -----------------------------------------------------------------------------------------

    def want(self, agent: str, rows: int, now: float) -> list[Action]:
        """The agent has room for `rows` more rows."""
        asker = self._askers.ask(agent, rows, now)
        actions = self._isolated(agent, asker, now)
        for name, batch in self._going():
            book = batch.book
            fair = math.ceil(len(book.pending) * asker.part)
            left = min(rows, LARGEST_LEASE, fair)
            while left and len(actions) < 2 * _GRANTS and (taken := book.pending.first(left)):
                lease = self._number(batch)
                actions.append(self._log(name, Granted(lease, agent, *taken), now))
                actions.append(Grant(agent, name, lease, *taken))
                left -= taken[1] - taken[0]
                rows -= taken[1] - taken[0]
                asker.got += taken[1] - taken[0]
        return actions or self._second(agent, asker, rows, now)

    def _isolated(self, agent: str, asker: Asker, now: float) -> list[Action]:
        """One row that may be what ends agents, for an agent that has none: no other such row can be to blame."""
        if not any(batch.book.isolated for _, batch in self._going()):
            return []
        if any(lease.alone for _, lease in self._held_by(agent)):
            return []
        for name, batch in self._going():
            if (row := batch.book.isolated.first(1)) is not None:
                given_up = ""
                if batch.book.given_up(row[0]):
                    given_up = f"given up: {GIVEN_UP} times an agent was lost with this row, or a replica under it"
                lease = self._number(batch)
                asker.got += 1
                granted = self._log(name, Granted(lease, agent, *row), now)
                return [granted, Grant(agent, name, lease, *row, alone=True, given_up=given_up)]
        return []

    def _second(self, agent: str, asker: Asker, rows: int, now: float) -> list[Action]:
        """Rows of stragglers, for an agent that has nothing else to do and is none itself."""
        actions: list[Action] = []
        if self._slow and any(self._batches[name].straggles(own, now) for name, own in self._held_by(agent)):
            return []
        while self._slow and rows:
            name, number = self._slow.popleft()
            batch = self._batches.get(name)
            lease = batch.book.leases.get(number) if batch is not None else None
            if batch is None or batch.held or lease is None or not batch.straggles(lease, now):
                continue
            for first, last in self._doubles.single(name, list(lease.held)):
                last = min(last, first + rows)
                if rows and len(actions) < _GRANTS:
                    double = Double(self._number(batch), agent, name, Intervals([(first, last)]))
                    self._doubles.add(double)
                    actions.append(Grant(agent, name, double.lease, first, last))
                    rows -= last - first
                    asker.got += last - first
        return actions

    def _number(self, batch: _Batch) -> int:
        """A fresh lease's."""
        self._issued += 1
        if self._issued >= 1 << 31:
            raise StateError("this broker has granted 2**31 leases: restart it")
        return (batch.number & 0x3FFF) << 49 | (self._epoch & 0x3FFFF) << 31 | self._issued

    def _held_by(self, agent: str) -> list[tuple[str, Lease]]:
        return [(name, lease) for name, batch in self._batches.items() for lease in batch.book.of(agent)]

    def _going(self) -> list[tuple[str, _Batch]]:
        """Those of which rows may be begun."""
        return [(name, batch) for name, batch in self._batches.items() if not batch.held]

    # --- rows come back --------------------------------------------------------------------------------------

    def progress(self, agent: str, message: LeaseProgress, now: float) -> list[Action]:
        """Rows of a lease are safe in a journal.

        Of a lease that has ended, or was somebody else's second one, those rows count that are not done yet: the
        work is there, whoever was to do it.
        """
        name = message.batch
        batch = self._batches.get(name)
        if batch is None:
            return [] if message.finished else [Revoke(agent, message.lease)]
        lease = batch.book.leases.get(message.lease)
        if lease is None or lease.agent != agent:
            return self._late(agent, batch, message, now)
        lease.unheard = None
        if message.held:  # no progress, but neither the rows nor the agent are to blame
            lease.since = now
        actions = self._commit(batch, name, message, lease, now)
        if suspect := lease.held.common(message.suspect):
            actions.append(self._log(name, Blamed(suspect), now))
        if (back := lease.held.common(message.returned)) and not message.finished:
            actions.append(self._log(name, Returned(message.lease, back), now))
        if message.finished and message.lease in batch.book.leases:
            actions.append(self._log(name, Closed(message.lease), now))
        if message.lease not in batch.book.leases:
            batch.ended(now - lease.begun)
        return actions

    def _late(self, agent: str, batch: _Batch, message: LeaseProgress, now: float) -> list[Action]:
        """Of a lease that the book does not know (any more) as this agent's."""
        name = message.batch
        actions = self._commit(batch, name, message, None, now)
        double = self._doubles.get(message.lease, agent, name)
        if double is None:
            return actions if message.finished else [*actions, Revoke(agent, message.lease)]
        if suspect := double.held.common(message.suspect):
            actions.append(self._log(name, Blamed(suspect), now))
        self._doubles.give_back(double, message.returned, over=message.finished)
        return actions

    def _commit(
        self, batch: _Batch, name: str, message: LeaseProgress | Found, lease: Lease | None, now: float
    ) -> list[Action]:
        """Commit those rows that are not done: of those that the lease holds, without one of all. Whoever ran
        them too may stop."""
        book = batch.book
        among = lease.held.common if lease is not None else book.open_rows
        rows, bad = among(message.rows), among(message.bad)
        if not (rows or bad):
            return []
        number = lease.lease if lease is not None else 0
        wanted = [*rows, *bad]
        others = book.holders(wanted) if lease is None else []
        commit = Commit(number, message.journal, message.start, message.end, rows, bad)
        actions: list[Action] = [self._log(name, commit, now)]
        actions += [Revoke(other.agent, other.lease) for other in others if other.lease not in book.leases]
        own = message.lease if isinstance(message, LeaseProgress) else 0
        ended = self._doubles.done(name, wanted)
        return actions + [Revoke(double.agent, double.lease) for double in ended if double.lease != own]

    def hello(self, agent: str, leases: Iterable[int], now: float) -> list[Action]:
        """An agent (re)connected and says what it works on: messages may have been lost on both ways."""
        alive = set(leases)
        return [*self.known(agent, alive), *self.strangers(agent, alive)]

    def known(self, agent: str, alive: Container[int]) -> list[Action]:
        """What open batches know of that. Its `strangers` may be of a batch that opens still."""
        self._doubles.hello(agent, alive)
        return [action for batch in self._batches for action in self.named(agent, alive, batch)]

    def named(self, agent: str, alive: Container[int], batch: str) -> list[Action]:
        """That agent's leases of one batch, which may be open only since it named them."""
        own = self._batches[batch].book.of(agent)
        for lease in own:
            lease.closing, lease.unheard = lease.lease not in alive, None
        return [Salvage(agent, batch)] if own else []

    def strangers(self, agent: str, leases: Iterable[int]) -> list[Action]:
        """Of leases that an agent named, those that no batch knows: it must stop."""
        known = {lease.lease for _, lease in self._held_by(agent)} | self._doubles.of(agent)
        return [Revoke(agent, lease) for lease in sorted(set(leases) - known)]

    def agent_lost(self, agent: str, now: float, *, orderly: bool = False) -> list[Action]:
        """Nothing more is expected from this agent (what does come late still counts). orderly: it was told to
        end: no row is to blame."""
        self._askers.forget(agent)
        for _, lease in self._held_by(agent):
            lease.blameless |= orderly
        return self.known(agent, ())

    def salvaged(self, agent: str, batch: str, found: Iterable[Found], now: float) -> list[Action]:
        """The agent's journals were looked through: commit what is new, end the leases that were closing."""
        opened = self._batches.get(batch)
        if opened is None:
            return []
        actions = [action for item in found for action in self._commit(opened, batch, item, None, now)]
        for lease in opened.book.of(agent):
            if lease.closing:
                if not lease.blameless:
                    actions.append(self._log(batch, Blamed(list(lease.held)), now))
                actions.append(self._log(batch, Closed(lease.lease), now))
        return actions

    # --- time ------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Action]:
        """Time passed: give up on silent agents and stuck leases, even out the end of a batch."""
        if now - self._swept < _SWEEP_SECONDS:
            return []
        self._swept = now
        actions: list[Action] = []
        for batch, lease in _all(self._batches.items()):
            silent = lease.unheard is not None and now >= lease.unheard
            if not lease.closing and (silent or now - lease.since > self._stall):
                lease.closing = True
                actions += [Revoke(lease.agent, lease.lease), Salvage(lease.agent, batch)]
        return actions + self._even_out(now)

    def _even_out(self, now: float) -> list[Action]:
        """Nothing waits, and agents ask in vain: others hand back what they did not begin. When all is begun,
        `want` may double the slowest."""
        self._slow.clear()
        vain = self._askers.starving(now)
        going = self._going()
        if not vain or any(batch.book.pending for _, batch in going):
            return []
        leases = _all(going)
        if givers := even_out([lease for _, lease in leases], vain, self._askers.room):
            return [Revoke(lease.agent, lease.lease, soft=True) for lease in givers]
        late = [(name, lease) for name, lease in leases if self._batches[name].straggles(lease, now)]
        late.sort(key=lambda one: one[1].since)
        self._slow.extend((name, lease.lease) for name, lease in late)
        return []


def _all(batches: Iterable[tuple[str, _Batch]]) -> list[tuple[str, Lease]]:
    return [(name, lease) for name, batch in batches for lease in batch.book.leases.values()]
