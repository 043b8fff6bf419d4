"""Which agent runs which rows. Pure: events and a clock reading in, actions out.

Leases are as small as what an agent asks for, and shrink as the pool empties, so that nobody holds much when
others have nothing. Rows of a lost agent return to the pool only after its journals were looked through; rows
that a loaded agent did not start are asked back when another agent idles.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from exahpc.batch.book import GIVEN_UP, Book, Lease
from exahpc.batch.commits import AnyEvent, Blamed, Closed, Commit, Granted, Returned
from exahpc.batch.intervals import Intervals, Ranges
from exahpc.batch.salvage import Found
from exahpc.errors import StateError
from exahpc.wire.messages import LeaseProgress

LARGEST_LEASE = 512
_GRANTS = 64  # leases in one answer: a pool in shreds must not make one answer endless
_ACTIVE_SECONDS = 120.0
_HUNGRY_SECONDS = 5.0


@dataclass(frozen=True)
class Log:
    """Append this event to the batch's commit journal."""

    batch: str
    event: AnyEvent


@dataclass(frozen=True)
class Grant:
    """Send a LeaseGrant to the agent."""

    agent: str
    batch: str
    lease: int
    first: int
    last: int
    alone: bool = False
    given_up: str = ""


@dataclass(frozen=True)
class Revoke:
    """Send a LeaseRevoke to the agent."""

    agent: str
    lease: int
    soft: bool = False


@dataclass(frozen=True)
class Salvage:
    """Look through this agent's journals, then call `salvaged`."""

    agent: str
    batch: str


Action = Log | Grant | Revoke | Salvage


@dataclass
class _Ask:
    when: float
    got: int


class Leases:
    """All batches of one broker, oldest first. grace: seconds in which agents that held leases of an earlier
    broker must say hello; stall: seconds without progress after which a lease is taken back."""

    def __init__(self, epoch: int, *, grace: float = 20.0, stall: float = 1800.0) -> None:
        self._epoch, self._grace, self._stall = epoch, grace, stall
        self._books: dict[str, tuple[Book, int]] = {}
        self._issued = 0
        self._asked: dict[str, _Ask] = {}

    def open(self, batch: str, book: Book, number: int, now: float) -> None:
        """Take on a batch in the state its commit journals tell. number: of the broker's commit journal."""
        if batch in self._books:
            raise StateError(f"batch {batch} is open already")
        self._books[batch] = (book, number)
        for lease in book.leases.values():
            lease.since, lease.unheard = now, now + self._grace

    def close(self, batch: str, now: float) -> list[Action]:
        """End the leases of a batch and forget it: cancelled, failed or done."""
        leases = list(self._books[batch][0].leases.values())
        closed = [self._log(batch, Closed(lease.lease), now) for lease in leases]
        del self._books[batch]
        return [*closed, *(Revoke(lease.agent, lease.lease) for lease in leases)]

    def book(self, batch: str) -> Book | None:
        found = self._books.get(batch)
        return found[0] if found else None

    def _log(self, batch: str, event: AnyEvent, now: float) -> Log:
        self._books[batch][0].apply(event, now)
        return Log(batch, event)

    def want(self, agent: str, rows: int, now: float) -> list[Action]:
        """The agent has room for `rows` more rows."""
        self._asked[agent] = _Ask(now, 0)
        actions = self._isolated(agent, now)
        for batch, (book, number) in self._books.items():
            share = -(-len(book.pending) // (2 * self._active(now)))
            left = min(rows, LARGEST_LEASE, max(1, share)) if book.pending else 0
            while left and len(actions) < 2 * _GRANTS and (taken := book.pending.first(left)):
                lease = self._number(number)
                actions.append(self._log(batch, Granted(lease, agent, *taken), now))
                actions.append(Grant(agent, batch, lease, *taken))
                left -= taken[1] - taken[0]
                rows -= taken[1] - taken[0]
                self._asked[agent].got += taken[1] - taken[0]
        return actions

    def _isolated(self, agent: str, now: float) -> list[Action]:
        """One row that may be what ends agents, for an agent that has none: no other such row can be to blame."""
        if not any(book.isolated for book, _ in self._books.values()):
            return []
        if any(lease.alone for _, lease in self._all() if lease.agent == agent):
            return []
        for batch, (book, number) in self._books.items():
            if (row := book.isolated.first(1)) is not None:
                given_up = ""
                if book.given_up(row[0]):
                    given_up = f"given up: {GIVEN_UP} times an agent was lost with this row, or a replica under it"
                lease = self._number(number)
                self._asked[agent].got += 1
                granted = self._log(batch, Granted(lease, agent, *row), now)
                return [granted, Grant(agent, batch, lease, *row, alone=True, given_up=given_up)]
        return []

    def _number(self, number: int) -> int:
        """A fresh lease's. number: of the broker's commit journal."""
        self._issued += 1
        if self._issued >= 1 << 31:
            raise StateError("this broker has granted 2**31 leases: restart it")
        return (number & 0x3FFF) << 49 | (self._epoch & 0x3FFFF) << 31 | self._issued

    def _active(self, now: float) -> int:
        return max(1, sum(now - ask.when < _ACTIVE_SECONDS for ask in self._asked.values()))

    def _all(self) -> list[tuple[str, Lease]]:
        return [(batch, lease) for batch, (book, _) in self._books.items() for lease in book.leases.values()]

    def progress(self, agent: str, message: LeaseProgress, now: float) -> list[Action]:
        """Rows of a lease are safe in a journal. Rows that the lease does not hold (any more) are ignored."""
        book = self.book(message.batch)
        lease = book.leases.get(message.lease) if book else None
        if book is None or lease is None or lease.agent != agent:
            return [] if message.finished else [Revoke(agent, message.lease)]
        lease.unheard = None
        rows, bad = lease.held.common(message.rows), lease.held.common(message.bad)
        actions: list[Action] = []
        if rows or bad:
            commit = Commit(message.lease, message.journal, message.start, message.end, rows, bad)
            actions.append(self._log(message.batch, commit, now))
        if suspect := lease.held.common(message.suspect):
            actions.append(self._log(message.batch, Blamed(suspect), now))
        if (back := lease.held.common(message.returned)) and not message.finished:
            actions.append(self._log(message.batch, Returned(message.lease, back), now))
        if message.finished and message.lease in book.leases:
            actions.append(self._log(message.batch, Closed(message.lease), now))
        return actions

    def hello(self, agent: str, leases: Iterable[int], now: float) -> list[Action]:
        """An agent (re)connected and says what it works on: messages may have been lost on both ways."""
        alive = set(leases)
        known: set[int] = set()
        batches: list[str] = []
        for batch, lease in self._all():
            if lease.agent == agent:
                known.add(lease.lease)
                lease.closing, lease.unheard = lease.lease not in alive, None
                if batch not in batches:
                    batches.append(batch)
        return [
            *(Salvage(agent, batch) for batch in batches),
            *(Revoke(agent, lease) for lease in sorted(alive - known)),
        ]

    def agent_lost(self, agent: str, now: float) -> list[Action]:
        """Nothing more is expected from this agent (what does come late still counts until the salvage)."""
        self._asked.pop(agent, None)
        return [action for action in self.hello(agent, (), now) if isinstance(action, Salvage)]

    def salvaged(self, agent: str, batch: str, found: Iterable[Found], now: float) -> list[Action]:
        """The agent's journals were looked through: commit what is new, end the leases that were closing."""
        book = self.book(batch)
        if book is None:
            return []
        actions: list[Action] = []
        for item in found:
            rows, bad = self._fresh(book, item.rows), self._fresh(book, item.bad)
            if rows or bad:
                commit = Commit(0, item.journal, item.start, item.end, rows, bad)
                actions.append(self._log(batch, commit, now))
        for lease in list(book.leases.values()):
            if lease.agent == agent and lease.closing:
                actions.append(self._log(batch, Blamed(list(lease.held)), now))
                actions.append(self._log(batch, Closed(lease.lease), now))
        return actions

    @staticmethod
    def _fresh(book: Book, rows: Ranges) -> Ranges:
        return list(Intervals(book.open_rows(rows)))

    def tick(self, now: float) -> list[Action]:
        """Time passed: give up on silent agents and stuck leases, even out the end of a batch."""
        actions: list[Action] = []
        for batch, lease in self._all():
            silent = lease.unheard is not None and now >= lease.unheard
            if not lease.closing and (silent or now - lease.since > self._stall):
                lease.closing = True
                actions += [Revoke(lease.agent, lease.lease), Salvage(lease.agent, batch)]
        return actions + self._even_out(now)

    def _even_out(self, now: float) -> list[Action]:
        """One soft revoke for each agent that asked in vain and holds nothing, from whoever holds most."""
        vain = [a for a, ask in self._asked.items() if not ask.got and now - ask.when < _HUNGRY_SECONDS]
        if not vain or any(book.pending for book, _ in self._books.values()):
            return []
        held: dict[str, int] = {}
        for _, lease in self._all():
            held[lease.agent] = held.get(lease.agent, 0) + len(lease.held)
        hungry = [agent for agent in vain if agent not in held]
        givers = [le for _, le in self._all() if not le.soft and not le.closing and held[le.agent] > 1]
        givers.sort(key=lambda lease: (-held[lease.agent], -lease.lease))  # the newest is the least begun
        actions: list[Action] = []
        for _, lease in zip(hungry, givers, strict=False):
            lease.soft = True
            actions.append(Revoke(lease.agent, lease.lease, soft=True))
        return actions
