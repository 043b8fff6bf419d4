"""Laws of length classes: short requests never wait for long ones, and long ones do not wait for ever."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from exahpc.deployment.parse import load
from exahpc.entry.actions import Action, Tell
from exahpc.entry.desk import Desk
from exahpc.entry.ledger import Record
from exahpc.wire import messages as m
from tests.unit.entry.fleets import ask, picked, replicas, router_of, routes, taken

LONG, SPILL = 1000, 2.0
TOML = f"""
name = "unit"
[model]
path = "/nowhere/tiny"
[[pool]]
name = "a"
replicas = 4
[routing]
long_tokens = {LONG}
spill_seconds = {SPILL}
headroom = 0.0
[limits]
queue_seconds = 600.0
max_waiting = 1000
[launcher]
kind = "local"
"""


def fleet(short: int, long: int, other: int = 0, **over: Any) -> list[m.AgentRoute]:
    return [
        *routes(short, length="short", **over),
        *routes(long, first=short, length="long", **over),
        *routes(other, first=short + long, **over),
    ]


def test_each_class_has_its_own_replicas_and_those_for_any() -> None:
    router = router_of(fleet(20, 20, 20), long_tokens=LONG)
    assert {picked(router, ask(LONG - 1)).agent.group.length for _ in range(200)} == {"short", "any"}
    assert {picked(router, ask(LONG)).agent.group.length for _ in range(200)} == {"long", "any"}


def test_many_short_choices_do_not_make_a_long_request() -> None:
    router = router_of(fleet(1, 1), long_tokens=LONG)
    assert picked(router, ask(8 * (LONG - 1), sequences=8)).agent.group.length == "short"


def test_a_short_request_spills_at_once_when_its_own_replicas_have_no_room_but_not_before() -> None:
    router = router_of(fleet(1, 1, capacity=4), long_tokens=LONG, headroom=0.25)
    short, long = replicas(router)
    assert [taken(router) for _ in range(3)] == [short] * 3
    assert taken(router) is long, "rather than into the headroom of its own"


def test_a_long_request_spills_only_after_its_time_and_then_to_the_best_replica_of_all() -> None:
    router = router_of(fleet(1, 1, capacity=1), long_tokens=LONG, spill_seconds=SPILL)
    short, long = replicas(router)
    assert taken(router, ask(LONG)) is long
    assert router.pick(ask(LONG), 0.0, waited=SPILL - 0.01) is None
    assert picked(router, ask(LONG), waited=SPILL) is short


def test_without_class_pools_nobody_asks_for_the_length() -> None:
    router = router_of(routes(2, capacity=1), long_tokens=LONG)
    assert {taken(router, ask(9 * LONG)), taken(router, ask(1))} == set(replicas(router))
    assert router.lane(ask(9 * LONG)) == router.lane(ask(1))


# --- with the line -----------------------------------------------------------------------------------------------


class Shop:
    """A desk, and agents that are done when the test says so."""

    def __init__(self, table: list[m.AgentRoute]) -> None:
        self.desk = Desk(load(TOML), lambda n: 0)
        self.now = 0.0
        self.count = 0
        self.running: list[Record] = []
        self.waiting: dict[str, Record] = {}
        self.sent_at: dict[str, float] = {}
        self.perform(self.desk.table(m.FleetTable(1, 1, table), 0.0))
        for agent in list(self.desk.router.agents.values()):
            self.perform(self.desk.link_up(agent, 0.0))

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Tell) and isinstance(action.message, m.Submit):
                record = self.waiting.pop(action.message.request)
                self.running.append(record)
                self.sent_at[record.id] = self.now

    def arrives(self, tokens: int) -> Record:
        self.count += 1
        record = Record(
            f"r{self.count}", "chat", b"", stream=True, seed=1, created=1, choices=1, prompt=0, new=tokens
        )
        self.waiting[record.id] = record
        self.perform(self.desk.open(record, self.now))
        return record

    def ends(self, record: Record) -> None:
        self.running.remove(record)
        assert record.replica is not None
        agent = record.replica.agent
        self.perform(self.desk.done(agent, m.Done(record.id, record.attempt, b"", 1, 1), self.now))

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.perform(self.desk.tick(self.now))


def test_a_short_request_does_not_wait_behind_a_long_one() -> None:
    shop = Shop(fleet(1, 1, capacity=1))
    shop.arrives(LONG)
    behind = shop.arrives(LONG)
    assert shop.arrives(1).phase == "running"
    assert behind.phase == "waiting"


def test_a_long_request_gets_the_next_place_anywhere_once_it_has_waited_long_enough() -> None:
    shop = Shop(fleet(1, 1, capacity=1))
    shop.arrives(LONG)
    late = shop.arrives(LONG)
    first = shop.arrives(1)
    shop.passes(SPILL)
    earlier = shop.arrives(1)
    assert (late.phase, earlier.phase) == ("waiting", "waiting")
    shop.ends(first)
    assert (late.phase, earlier.phase) == ("running", "waiting")


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["short", "long", "end", "end", "pass"]), st.integers(0, 99)), max_size=120
    ),
    st.integers(1, 2),
    st.integers(0, 1),
    st.integers(1, 2),
)
def test_nobody_starves_while_requests_keep_ending(
    events: list[tuple[str, int]], short: int, long: int, capacity: int
) -> None:
    """From any state, with short requests coming in faster than they end, a long one runs after about as many ends
    as there were requests before it: turns are fair by tokens, and here all requests have about as many."""
    shop = Shop(fleet(short, long, capacity=capacity))
    for what, number in events:
        if what == "end":
            if shop.running:
                shop.ends(shop.running[number % len(shop.running)])
        elif what == "pass":
            shop.passes(number / 40)
        else:
            shop.arrives(LONG - (what == "short"))
    late = shop.arrives(LONG)
    shop.passes(SPILL)
    shop.passes(0.25)
    for _ in range(2 * (len(shop.running) + len(shop.waiting)) + 2):
        if late.phase == "running":
            break
        shop.arrives(LONG - 1)
        shop.arrives(LONG - 1)
        shop.ends(shop.running[0])
        shop.passes(0.01)
    assert late.phase == "running"


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["short", "long", "end", "pass"]), st.integers(0, 99)), max_size=80))
def test_nobody_waits_while_a_replica_that_may_take_it_is_free(events: list[tuple[str, int]]) -> None:
    shop = Shop(fleet(1, 1, 1, capacity=2))
    for what, number in events:
        if what == "end":
            if shop.running:
                shop.ends(shop.running[number % len(shop.running)])
        elif what == "pass":
            shop.passes(number / 40)
        else:
            shop.arrives(1 if what == "short" else LONG)
        free = {r.agent.group.length for r in replicas(shop.desk.router) if r.sequences < r.capacity}
        for record in shop.waiting.values():
            if record.size < LONG:
                assert not free
            elif shop.now - record.since < SPILL:
                assert not free & {"long", "any"}
