"""Laws of the fleet's figures."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exahpc.telemetry.aggregate import MOST_NODES, MOST_ROWS, MOST_SWITCHES, Aggregate
from exahpc.telemetry.histogram import ERROR, Histogram
from exahpc.telemetry.tally import Seen
from exahpc.wire.messages import (
    AgentRollup,
    EntryRollup,
    EntryStatus,
    Figures,
    FiguresQuery,
    FleetFigures,
    ReplicaState,
    Service,
    Sketch,
)

KV = 1000


def replica(slot: int, incarnation: int = 1, *, served: int = 0, tokens: int = 0, **more: object) -> ReplicaState:
    service = Service(served=served, utilization=0.5, memory=0.25)
    state = ReplicaState(slot, incarnation, "ready", running=2, kv_free=250, tokens=tokens, service=service)
    return msgspec.structs.replace(state, **more)


def seen(task: int, *replicas: ReplicaState, pool: str = "a", life: int = 1, heard: bool = True) -> Seen:
    return Seen(f"{pool}/{task}", pool, f"n{task}", life, heard, len(replicas) or 2, KV, list(replicas))


def sketch(*values: int) -> Sketch:
    found = Histogram()
    for value in values:
        found.add(value)
    return found.sketch()


def fleet(aggregate: Aggregate, now: float = 0.0) -> Figures:
    return aggregate.row("fleet", "", now)


def test_every_scope_counts_what_is_below_it() -> None:
    found = Aggregate(1, {"n0": "s0", "n1": "s1"}, 0.0)
    agents = [seen(0, replica(0), replica(1)), seen(1, replica(2), replica(3)), seen(2, replica(0), pool="b")]
    found.look(agents, [], 0.0)
    grown = [
        seen(0, replica(0, tokens=5, served=1), replica(1, tokens=7)),
        seen(1, replica(2), replica(3, tokens=1)),
        seen(2, replica(0, tokens=100), pool="b"),
    ]
    found.look(grown, [], 10.0)
    rows = {(row.scope, row.name): row for row in found.answer(FiguresQuery("node"), 10.0).rows}
    assert {key: row.tokens for key, row in rows.items()} == {
        ("fleet", ""): 113, ("pool", "a"): 13, ("pool", "b"): 100, ("switch", "s0"): 12, ("switch", "s1"): 1,
        ("node", "n0"): 12, ("node", "n1"): 1, ("node", "n2"): 100,
    }  # fmt: skip
    assert (rows["fleet", ""].ready, rows["pool", "a"].ready, rows["switch", "s0"].running) == (5, 4, 4)
    assert rows["fleet", ""].requests == 1


def test_what_is_not_heard_is_neither_nothing_nor_full() -> None:
    found = Aggregate(1, {}, 0.0)
    found.look([seen(0, replica(0)), seen(1, replica(1))], [], 0.0)
    found.look([seen(0, replica(0, tokens=9)), seen(1, replica(1, tokens=9))], [], 10.0)
    found.look([seen(0, replica(0, tokens=9)), seen(1, heard=False)._replace(slots=1, replicas=[])], [], 20.0)
    row = fleet(found)
    assert (row.ready, row.silent, row.tokens) == (1, 1, 18)
    assert (row.kv, row.utilization, row.memory) == (0.75, 0.5, 0.25)
    found.look([seen(0, replica(0, tokens=9)), seen(1, replica(1, tokens=10))], [], 30.0)
    assert (fleet(found).tokens, fleet(found).silent) == (19, 0)


def test_a_replica_that_has_told_nothing_has_no_full_cache() -> None:
    found = Aggregate(1, {}, 0.0)
    fresh = ReplicaState(0, 1, "ready")
    found.look([seen(0, fresh)], [], 0.0)
    assert (fleet(found).kv, fleet(found).utilization, fleet(found).memory) == (-1.0, -1.0, -1.0)


def test_counting_begins_where_this_broker_began() -> None:
    found = Aggregate(2, {}, 0.0)
    found.look([seen(0, replica(0, tokens=1_000_000, served=77))], [], 0.0)
    assert (fleet(found).tokens, fleet(found).requests) == (0, 0)


@given(st.lists(st.tuples(st.integers(0, 50), st.sampled_from(["same", "replica", "agent"])), max_size=30))
def test_counters_only_grow_and_count_everything_once(steps: list[tuple[int, str]]) -> None:
    found = Aggregate(1, {}, 0.0)
    life = incarnation = 1
    served = tokens = total = 0
    found.look([seen(0, replica(0))], [], 0.0)
    for number, (more, what) in enumerate(steps):
        before = fleet(found).tokens
        if what == "agent":
            life, incarnation, served, tokens = life + 1, incarnation, 0, 0
        elif what == "replica":
            incarnation, served = incarnation + 1, 0
        served, tokens, total = served + more, tokens + more, total + more
        found.look([seen(0, replica(0, incarnation, served=served, tokens=tokens), life=life)], [], number)
        assert fleet(found).tokens >= before
        assert (fleet(found).tokens, fleet(found).requests) == (total, total)


def test_percentiles_of_the_fleet_are_those_of_all_observations() -> None:
    found = Aggregate(1, {"n0": "s", "n1": "s"}, 0.0)
    found.agent("a", "n0", AgentRollup({"ttft": sketch(*[1000] * 98)}), 5.0)
    found.agent("b", "n1", AgentRollup({"ttft": sketch(9_000_000, 9_000_000)}), 6.0)
    found.look([seen(0, replica(0)), seen(1, replica(0), pool="b")], [], 10.0)
    for scope, name in (("fleet", ""), ("switch", "s")):
        recent = found.row(scope, name, 10.0).recent["ttft"]  # type: ignore[arg-type]
        assert recent.count == 100
        assert recent.p50 == pytest.approx(1000, rel=ERROR)
        assert recent.p99 == pytest.approx(9_000_000, rel=ERROR)
    assert found.row("pool", "a", 10.0).recent["ttft"].p99 == pytest.approx(1000, rel=ERROR)


def test_the_last_minute_forgets_and_the_total_does_not() -> None:
    found = Aggregate(1, {}, 0.0)
    found.agent("a", "n0", AgentRollup({"e2e": sketch(5)}), 0.0)
    found.entry(EntryRollup({200: 3, 503: 1}, {"no_capacity": 1}, 0, 0, 0, 0, {"ttft": sketch(7)}), 0.0)
    answer = found.answer(FiguresQuery(), 59.0)
    assert answer.entries.recent["ttft"].count == 1
    assert found.statuses(59.0) == {200: 3, 503: 1}
    later = found.answer(FiguresQuery(), 75.0)
    assert later.entries.recent == {}
    assert found.statuses(75.0) == {}
    assert later.entries.statuses == {200: 3, 503: 1}
    assert later.sketches["a"]["e2e"] == later.sketches[""]["e2e"] == sketch(5)


def test_detail_comes_only_from_where_it_was_asked_of_and_is_bounded() -> None:
    found = Aggregate(1, {f"n{task}": f"s{task // 4}" for task in range(400)}, 0.0)
    agents = [seen(task, *(replica(task * 4 + slot) for slot in range(4))) for task in range(400)]
    found.look(agents, [EntryStatus(0, "u", "", 3, 4, 0, 0)], 0.0)
    plain = found.answer(FiguresQuery(), 0.0)
    assert {row.scope for row in plain.rows} == {"fleet", "pool", "switch"}
    assert sum(row.scope == "switch" for row in plain.rows) == MOST_SWITCHES
    assert len(msgspec.msgpack.encode(plain)) < 16_000
    one = found.answer(FiguresQuery("replica", switch="s7"), 0.0)
    names = [row.name for row in one.rows if row.scope == "replica"]
    assert names == [f"a/{slot}" for slot in range(7 * 16, 8 * 16)]
    everything = found.answer(FiguresQuery("replica"), 0.0)
    detail = [row for row in everything.rows if row.scope in ("node", "replica")]
    assert (len(detail), everything.left_out) == (MOST_ROWS, 400 + 1600 - MOST_ROWS)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(one), type=FleetFigures) == one
    assert (one.entries.in_flight, one.entries.waiting) == (3, 4)


def test_percentiles_of_nodes_come_with_as_many_nodes_as_can_be_merged_at_once() -> None:
    found = Aggregate(1, {}, 0.0)
    found.look([seen(task, replica(task)) for task in range(MOST_NODES + 1)], [], 0.0)
    for task in range(MOST_NODES + 1):
        found.agent("a", f"n{task}", AgentRollup({"ttft": sketch(1000)}), 5.0)
    few = found.answer(FiguresQuery("node", node="n7"), 10.0).rows[-1]
    assert (few.name, few.recent["ttft"].count) == ("n7", 1)
    assert found.answer(FiguresQuery("node"), 10.0).rows[-1].recent == {}
    assert found.row("node", "n7", 66.0).recent == {}, "a minute later"
