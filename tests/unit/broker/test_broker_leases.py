"""Every row is committed exactly once, whatever is lost, late, repeated or restarted."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from exahpc.batch.book import GIVEN_UP, Book
from exahpc.batch.commits import AnyEvent, Blamed, Closed, Commit, Granted, Returned
from exahpc.batch.folds import BookState
from exahpc.batch.intervals import Intervals, count, ranges_of
from exahpc.batch.salvage import Found
from exahpc.broker.lease_actions import Action, Grant, Log, Revoke, Salvage
from exahpc.broker.leases import LARGEST_LEASE, STRAGGLER_SECONDS, Leases
from exahpc.errors import StateError
from exahpc.wire.messages import LeaseProgress

BAD_ROWS = [(3, 5)]


def told(state: BookState) -> BookState:
    """As it comes back from a file."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=BookState)


@dataclass
class FakeAgent:
    """Journals rows, forgets leases when killed. leases: rows it still has to do, in order."""

    name: str
    leases: dict[int, list[int]] = field(default_factory=dict)
    journal: list[tuple[int, bool]] = field(default_factory=list)

    def take(self, action: Grant) -> None:
        self.leases[action.lease] = list(range(action.first, action.last))

    def finish(self, lease: int, n: int, ok: bool, batch: str) -> LeaseProgress:
        rows, self.leases[lease] = self.leases[lease][:n], self.leases[lease][n:]
        start = len(self.journal)
        self.journal += [(row, ok) for row in rows]
        finished = not self.leases[lease]
        if finished:
            del self.leases[lease]
        good, bad = (ranges_of(rows), []) if ok else ([], ranges_of(rows))
        counts = (count(good), count(bad))
        return LeaseProgress(lease, batch, self.name, start, len(self.journal), *counts, finished, good, bad)

    def found(self) -> list[Found]:
        """Everything it ever journaled, as a scan of all gaps would find it at worst."""
        first = dict(reversed(self.journal))
        good, bad = [r for r, ok in first.items() if ok], [r for r, ok in first.items() if not ok]
        return [Found(self.name, 0, len(self.journal), ranges_of(good), ranges_of(bad))] if first else []


class LeasesMachine(RuleBasedStateMachine):
    agents_drawn = st.sampled_from(["a/0", "a/1", "b/0"])

    @initialize(rows=st.integers(6, 40))
    def begin(self, rows: int) -> None:
        self.rows, self.now, self.epoch = rows, 0.0, 1
        self.agents = {name: FakeAgent(name) for name in ("a/0", "a/1", "b/0")}
        self.flying: list[tuple[str, LeaseProgress]] = []
        self.salvages: list[Salvage] = []
        self.durable: list[AnyEvent] = []
        self.logged: list[AnyEvent] = []
        self.leases = Leases(1)
        self.leases.open("x", Book(rows, BAD_ROWS), 1, 0.0)

    @property
    def book(self) -> Book:
        book = self.leases.book("x")
        assert book is not None
        return book

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Log(_, event):
                    self.logged.append(event)
                case Grant():
                    self.agents[action.agent].take(action)
                case Revoke(agent, lease, soft):
                    self.revoked(self.agents[agent], lease, soft)
                case Salvage():
                    self.salvages.append(action)

    def revoked(self, agent: FakeAgent, lease: int, soft: bool) -> None:
        rows = agent.leases.pop(lease, None)
        if rows is None or not soft:
            return
        agent.leases[lease], back = rows[:1], rows[1:]
        message = LeaseProgress(lease, "x", "", 0, 0, 0, 0, False, returned=ranges_of(back))
        self.flying.append((agent.name, message))

    @rule(name=agents_drawn, rows=st.integers(1, 12))
    def want(self, name: str, rows: int) -> None:
        self.perform(self.leases.want(name, rows, self.now))

    @rule(name=agents_drawn, pick=st.integers(0, 5), n=st.integers(1, 4), ok=st.booleans())
    def finish_rows(self, name: str, pick: int, n: int, ok: bool) -> None:
        agent = self.agents[name]
        if agent.leases:
            lease = sorted(agent.leases)[pick % len(agent.leases)]
            self.flying.append((name, agent.finish(lease, n, ok, "x")))

    @precondition(lambda self: self.flying)
    @rule(pick=st.integers(0, 50), again=st.booleans())
    def deliver(self, pick: int, again: bool) -> None:
        """Any message, late or twice."""
        at = pick % len(self.flying)
        name, message = self.flying[at] if again else self.flying.pop(at)
        self.perform(self.leases.progress(name, message, self.now))

    @rule(name=agents_drawn, lose=st.booleans())
    def reconnect(self, name: str, lose: bool) -> None:
        if lose:
            self.flying = [(to, message) for to, message in self.flying if to != name]
        self.perform(self.leases.hello(name, list(self.agents[name].leases), self.now))

    @rule(name=agents_drawn)
    def beats_missed(self, name: str) -> None:
        """The agent is only cut off: it goes on working."""
        self.perform(self.leases.agent_lost(name, self.now))

    @rule(name=agents_drawn)
    def killed(self, name: str) -> None:
        self.agents[name].leases.clear()
        self.perform(self.leases.hello(name, [], self.now))

    @precondition(lambda self: self.salvages)
    @rule(pick=st.integers(0, 50))
    def salvage(self, pick: int) -> None:
        action = self.salvages.pop(pick % len(self.salvages))
        self.perform(self.leases.salvaged(action.agent, action.batch, self.agents[action.agent].found(), self.now))

    @rule(seconds=st.sampled_from([0.2, 6.0, 30.0, 2000.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.perform(self.leases.tick(self.now))

    @rule(name=agents_drawn)
    def the_end_is_slow(self, name: str) -> None:
        """Others hold all that is left and bring nothing for long, while one asks in vain: it is to help."""
        for _ in range(10):
            for other in self.agents:
                if other != name:
                    self.want(other, 12)
        self.now += STRAGGLER_SECONDS + 1.0
        for _ in range(3):
            self.want(name, 12)
            self.time_passes(1.0)
        self.want(name, 12)

    @rule()
    def flush(self) -> None:
        self.durable += self.logged
        self.logged = []

    @rule(elsewhere=st.booleans(), folded=st.integers(0, 100))
    def broker_restarts(self, elsewhere: bool, folded: int) -> None:
        """What was not flushed is lost; journals are not. elsewhere: with a fleet of other agents' processes.
        folded: per cent of the events that are known from a fold."""
        self.logged, self.salvages, self.epoch = [], [], self.epoch + 1
        book = Book(self.rows, BAD_ROWS)
        for number, event in enumerate(self.durable):
            if number == len(self.durable) * folded // 100:
                book = Book.of_state(told(book.state()), BAD_ROWS)
            book.apply(event, 0.0)
        self.leases = Leases(self.epoch)
        self.leases.open("x", book, self.epoch, self.now)
        found = [item for agent in self.agents.values() for item in agent.found()]
        self.perform(self.leases.salvaged("", "x", found, self.now))
        for agent in self.agents.values():
            if elsewhere:
                agent.leases.clear()
            else:
                self.perform(self.leases.hello(agent.name, list(agent.leases), self.now))

    @invariant()
    def every_row_is_in_one_place(self) -> None:
        if not hasattr(self, "rows"):
            return
        where: dict[int, int] = defaultdict(int)
        book = self.book
        held = (lease.held for lease in book.leases.values())
        for place in [book.pending, book.isolated, *held, Intervals(BAD_ROWS)]:
            for first, last in place:
                for row in range(first, last):
                    where[row] += 1
        for event in [*self.durable, *self.logged]:
            if isinstance(event, Commit):
                records = dict(reversed(self.agents[event.journal].journal[event.start : event.end]))
                for ranges, ok in ((event.rows, True), (event.bad, False)):
                    for first, last in ranges:
                        for row in range(first, last):
                            where[row] += 1
                            assert records[row] == ok, "the named bytes hold the record"
        assert where == dict.fromkeys(range(self.rows), 1)
        assert self.book.leased == sum(len(lease.held) for lease in self.book.leases.values())
        for agent in self.agents:
            own = {lease.lease for lease in self.book.leases.values() if lease.agent == agent}
            assert {lease.lease for lease in self.book.of(agent)} == own

    def teardown(self) -> None:
        """Whatever happened: with living agents the batch ends."""
        if not hasattr(self, "rows"):
            return
        for _ in range(300):
            if self.book.done:
                return
            for name, agent in self.agents.items():
                self.now += 1.0
                self.perform(self.leases.hello(name, list(agent.leases), self.now))
                while self.salvages:
                    self.salvage(0)
                self.want(name, 5)
                for lease in list(agent.leases):
                    self.flying.append((name, agent.finish(lease, 9, True, "x")))
            while self.flying:
                self.deliver(0, False)
            self.perform(self.leases.tick(self.now))
            self.every_row_is_in_one_place()
        raise AssertionError(f"rows left: {list(self.book.pending)}, {self.book.leases}")


TestLeases = LeasesMachine.TestCase
TestLeases.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_row_that_ends_every_agent_that_runs_it_is_given_up_and_its_neighbours_are_not(restarts: bool) -> None:
    killer, rows, events = 17, 60, list[AnyEvent]()
    leases, epoch, now, deaths = Leases(1), 1, 0.0, 0
    leases.open("x", Book(rows, []), 1, now)
    held: dict[str, dict[int, Grant]] = {"a/0": {}, "a/1": {}, "a/2": {}}
    given_up: list[int] = []

    def perform(actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Log):
                events.append(action.event)
            elif isinstance(action, Grant):
                held[action.agent][action.lease] = action

    for _ in range(200):
        now += 1.0
        for name, own in held.items():
            for _ in range(2):
                perform(leases.want(name, 8, now))
            ill = [g for g in own.values() if g.first <= killer < g.last and not g.given_up]
            assert sum(grant.alone for grant in own.values()) <= 1
            if ill:
                deaths += 1
                own.clear()
                if restarts:
                    epoch += 1
                    book = Book(rows, [])
                    for event in events:
                        book.apply(event, now)
                    leases = Leases(epoch)
                    leases.open("x", book, epoch, now)
                    for other, grants_there in held.items():
                        perform(leases.hello(other, list(grants_there), now))
                else:
                    perform(leases.agent_lost(name, now))
                perform(leases.salvaged(name, "x", [], now))
                continue
            for lease, grant in list(own.items()):
                whole = [(grant.first, grant.last)]
                ok, bad = ([], whole) if grant.given_up else (whole, [])
                given_up += range(grant.first, grant.last) if grant.given_up else ()
                counts = count(ok), count(bad)
                perform(leases.progress(name, LeaseProgress(lease, "x", "j", 0, 9, *counts, True, ok, bad), now))
                own.pop(lease)
    book = Book(rows, [])
    for event in events:
        book.apply(event, 0.0)
    assert book.done
    assert (book.failed, given_up, deaths) == (1, [killer], GIVEN_UP)


def test_rows_that_are_handed_back_in_order_are_never_blamed() -> None:
    leases = opened(4)
    for _ in range(3 * GIVEN_UP):
        (grant,) = [a for a in leases.want("a/0", 1, 0.0) if isinstance(a, Grant)]
        assert (grant.alone, grant.given_up) == (False, "")
        back = [(grant.first, grant.last)]
        leases.progress("a/0", LeaseProgress(grant.lease, "x", "", 0, 0, 0, 0, True, returned=back), 0.0)


def test_a_row_under_which_replicas_ended_counts_as_if_its_agent_was_lost() -> None:
    leases = opened(2)
    for alone in (False, False, True):
        (grant, *_) = [a for a in leases.want("a/0", 1, 0.0) if isinstance(a, Grant) and a.first == 0]
        assert grant.alone == alone
        told = LeaseProgress(grant.lease, "x", "", 0, 0, 0, 0, True, returned=[(0, 1)], suspect=[(0, 1)])
        leases.progress("a/0", told, 0.0)


def opened(rows: int) -> Leases:
    leases = Leases(1)
    leases.open("x", Book(rows, []), 1, 0.0)
    return leases


def grants(actions: list[Action]) -> list[tuple[int, int]]:
    return [(action.first, action.last) for action in actions if isinstance(action, Grant)]


def test_leases_shrink_as_the_pool_empties() -> None:
    leases = opened(10_000)
    for name in ("a/0", "a/1"):
        leases.want(name, 1, 0.0)
    sizes = []
    while actions := leases.want("a/0", 1_000_000, 1.0):
        sizes.append(count(grants(actions)))
    assert sizes[0] == LARGEST_LEASE
    assert sizes[-1] == 1
    assert sizes == sorted(sizes, reverse=True)


def test_an_idle_agent_gets_what_a_loaded_one_did_not_begin() -> None:
    leases = opened(100)
    (lease,) = [a.lease for a in leases.want("a/0", 50, 0.0) if isinstance(a, Grant)]
    while leases.want("a/0", 50, 0.0):
        pass
    assert leases.want("a/1", 8, 1.0) == []
    revokes = leases.tick(1.5)
    assert {(a.agent, a.soft) for a in revokes if isinstance(a, Revoke)} == {("a/0", True)}
    back = LeaseProgress(lease, "x", "", 0, 0, 0, 0, False, returned=[(40, 50)])
    leases.progress("a/0", back, 2.0)
    assert leases.want("a/1", 8, 2.0)


def test_a_lease_without_progress_is_taken_back() -> None:
    leases = opened(4)
    (lease,) = [a.lease for a in leases.want("a/0", 1, 0.0) if isinstance(a, Grant)]
    assert leases.tick(1799.0) == []
    assert leases.tick(1801.0) == [Revoke("a/0", lease), Salvage("a/0", "x")]
    events = [a.event for a in leases.salvaged("a/0", "x", [], 1802.0) if isinstance(a, Log)]
    assert events == [Blamed([(0, 1)]), Closed(lease)]


def test_rows_that_wait_for_room_on_the_disk_are_neither_taken_back_nor_blamed() -> None:
    leases = opened(4)
    (lease,) = [a.lease for a in leases.want("a/0", 1, 0.0) if isinstance(a, Grant)]
    for now in range(1000, 9000, 1000):
        assert leases.progress("a/0", LeaseProgress(lease, "x", "", 0, 0, 0, 0, False, held="full"), now) == []
        assert leases.tick(now + 900.0) == []


def test_nothing_more_of_a_held_batch_is_begun_and_nobody_hands_back_what_it_has() -> None:
    leases = opened(50)
    (lease, *_) = [a.lease for a in leases.want("a/0", 50, 0.0) if isinstance(a, Grant)]
    leases.hold("x", True)
    for now in range(1, 100):
        assert leases.want("a/1", 8, now) == leases.tick(now) == []
    done = LeaseProgress(lease, "x", "j", 8, 99, 1, 0, False, rows=[(0, 1)])
    assert [a.event for a in leases.progress("a/0", done, 99.0) if isinstance(a, Log)]
    leases.hold("x", False)
    assert [a for a in leases.want("a/1", 8, 100.0) if isinstance(a, Grant)]


def test_an_agent_that_never_says_hello_to_the_new_broker_loses_its_leases_after_the_grace() -> None:
    book = Book(10, [])
    book.apply(Granted(7, "a/0", 0, 4), 0.0)
    leases = Leases(2)
    leases.open("x", book, 2, 100.0)
    leases.want("a/0", 1, 105.0)  # a process of the same name: does not say that it holds lease 7
    assert leases.tick(110.0) == []
    assert leases.tick(121.0) == [Revoke("a/0", 7), Salvage("a/0", "x")]


def test_a_hello_that_names_a_lease_of_the_old_broker_keeps_it() -> None:
    book = Book(10, [])
    book.apply(Granted(7, "a/0", 0, 4), 0.0)
    leases = Leases(2)
    leases.open("x", book, 2, 100.0)
    assert leases.hello("a/0", [7], 101.0) == [Salvage("a/0", "x")]
    leases.salvaged("a/0", "x", [], 102.0)
    assert leases.tick(121.0) == []
    assert list(book.leases) == [7]


def test_rows_that_are_safe_in_a_journal_count_once_whoever_was_to_run_them() -> None:
    """An agent that leaves, or was thought lost, still reports what it has done."""
    leases = opened(4)
    (lease,) = [a.lease for a in leases.want("a/0", 1, 0.0) if isinstance(a, Grant)]
    message = LeaseProgress(lease, "x", "j", 8, 99, 1, 0, False, [(0, 1)])
    commit, own, late = leases.progress("a/1", message, 1.0)
    assert commit == Log("x", Commit(0, "j", 8, 99, [(0, 1)], []))
    assert (own, late) == (Revoke("a/0", lease), Revoke("a/1", lease))
    assert leases.progress("a/0", message, 2.0) == [Revoke("a/0", lease)]
    book = leases.book("x")
    assert book is not None
    assert (book.ok, book.leased, book.waiting) == (1, 0, 3)


def test_lease_ids_differ_between_brokers_batches_and_deployments() -> None:
    seen = set()
    for number, epoch in [(1, 1), (1, 2), (2, 1), (2, 2)]:
        leases = Leases(epoch)
        for batch in "xy":
            leases.open(batch, Book(4, []), number, 0.0)
        seen |= {(a.lease) for a in leases.want("a/0", 99, 0.0) if isinstance(a, Grant)}
        assert all(0 < lease < 2**63 for lease in seen)
    assert len(seen) == 8


@pytest.mark.parametrize(
    "event",
    [
        Granted(1, "a/0", 8, 12),
        Commit(0, "j", 8, 9, [(0, 2)], [(1, 2)]),
        Commit(0, "j", 8, 9, [(9, 11)], []),
        Returned(5, [(0, 1)]),
        Closed(5),
    ],
)
def test_an_event_that_cannot_follow_is_a_defect_with_a_story(event: AnyEvent) -> None:
    with pytest.raises(StateError, match=r"\d"):
        Book(10, []).apply(event, 0.0)
