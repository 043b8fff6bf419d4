"""Replicas come at once and go late, a constant load changes nothing, a pool that sleeps wakes for one request."""

from __future__ import annotations

import itertools
import math
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exahpc.broker.scaling import Load, PoolScaling
from exahpc.deployment.policy import Scaling
from exahpc.deployment.spec import Pool

IDLE, PAUSE = 300.0, 30.0


def pool(least: int = 0, replicas: int = 32, per_task: int = 1) -> Pool:
    rules = Scaling(
        least=least, tokens_per_replica=1000, queue_seconds=5.0, idle_seconds=IDLE, pause_seconds=PAUSE
    )
    return Pool(name="a", replicas=replicas, replicas_per_task=per_task, scaling=rules)


pools = st.builds(
    lambda most, least, per_task: pool(min(least, most), most, per_task),
    st.integers(1, 40),
    st.integers(0, 40),
    st.integers(1, 4),
)
loads = st.builds(
    lambda tokens, oldest, busy, coming: Load(tokens, oldest if busy else 0.0, busy or tokens > 0, coming),
    st.integers(0, 60_000),
    st.sampled_from([0.0, 0.0, 1.0, 6.0, 60.0]),
    st.booleans(),
    st.integers(0, 3),
)
steps = st.lists(st.tuples(loads, st.sampled_from([1.0, 10.0, 400.0]), st.booleans()), max_size=60)


@given(pools, steps)
def test_wanted_stays_between_least_and_all_and_never_grows_without_budget(
    made: Pool, history: list[tuple[Load, float, bool]]
) -> None:
    scaling, now = PoolScaling(made, made.first_tasks, 0.0), 0.0
    for load, passed, may_grow in history:
        now += passed
        before = scaling.wanted
        after = scaling.decide(load, now, may_grow=may_grow)
        assert made.least_tasks <= after <= made.tasks
        assert may_grow or after <= before


@given(pools, steps)
def test_changes_are_a_pause_apart_unless_a_pool_wakes(
    made: Pool, history: list[tuple[Load, float, bool]]
) -> None:
    scaling, now, changed = PoolScaling(made, made.first_tasks, 0.0), 0.0, -math.inf
    for load, passed, may_grow in history:
        now += passed
        before = scaling.wanted
        if scaling.decide(load, now, may_grow=may_grow) != before:
            assert before == 0 or now - changed >= PAUSE
            changed = now


@given(pools, steps, loads, st.integers(0, 50_000))
def test_more_load_never_wants_fewer(
    made: Pool, history: list[tuple[Load, float, bool]], load: Load, more: int
) -> None:
    one, other = (PoolScaling(made, made.first_tasks, 0.0) for _ in range(2))
    now = 0.0
    for earlier, passed, may_grow in history:
        now += passed
        for scaling in (one, other):
            scaling.decide(earlier, now, may_grow=may_grow)
    heavier = Load(load.tokens + more, load.oldest, True, load.coming)
    assert one.decide(load, now + 1) <= other.decide(heavier, now + 1)


@given(pools, st.integers(0, 40), st.integers(0, 60_000), st.booleans())
@settings(max_examples=60)
def test_a_constant_load_goes_one_way_and_then_changes_nothing(
    made: Pool, start: int, tokens: int, waits: bool
) -> None:
    scaling = PoolScaling(made, min(made.tasks, max(made.least_tasks, start)), 0.0)
    load = Load(tokens, 0.0, tokens > 0 or waits, 0)
    seen = [scaling.wanted]
    for now in range(0, 40 * int(IDLE), 10):
        seen.append(scaling.decide(load, float(now)))
    assert seen in (sorted(seen), sorted(seen, reverse=True))
    assert len(set(seen[-100:])) == 1
    enough = min(made.tasks, math.ceil(tokens / (1000 * min(made.replicas_per_task, made.replicas))))
    assert seen[-1] >= enough


def test_load_above_the_aim_is_answered_at_once_and_in_full() -> None:
    assert PoolScaling(pool(), 2, 0.0).decide(Load(17_500, 0.0, True, 0), 1.0) == 18


def test_requests_that_wait_bring_more_but_not_while_those_just_started_are_coming() -> None:
    scaling = PoolScaling(pool(), 4, 0.0, start_seconds=900.0)
    waits = Load(100, 6.0, True, 0)
    assert scaling.decide(waits, 1.0) == 6
    assert scaling.decide(waits._replace(coming=2), 100.0) == 6
    assert scaling.decide(waits, 200.0) == 9
    assert scaling.decide(waits._replace(coming=1), 1000.0) == 9
    assert scaling.decide(waits._replace(coming=1), 1200.0) == 13  # one does not come: others may


def test_light_load_ends_tasks_late_and_little_by_little_down_to_what_its_peak_needs() -> None:
    scaling = PoolScaling(pool(), 16, 0.0)
    changes = {}
    for now in range(0, 4000, 10):
        before = scaling.wanted
        tokens = 5500 if now % 200 == 0 else 100
        if scaling.decide(Load(tokens, 0.0, True, 0), float(now)) != before:
            changes[now] = scaling.wanted
    times = list(changes)
    assert list(changes.values()) == [12, 9]  # below half of 9 replicas' aim its peak is not
    assert times[0] >= IDLE
    assert all(b - a >= IDLE for a, b in itertools.pairwise(times))


def test_to_zero_when_nothing_was_asked_for_long_enough_and_back_on_the_first_request() -> None:
    scaling = PoolScaling(pool(least=0), 8, 0.0)
    assert scaling.decide(Load(0, 0.0, True, 0), 100.0) == 8  # something runs, though it wants no more tokens
    assert scaling.decide(Load(0, 0.0, False, 0), 100.0 + IDLE - 1) == 8
    assert scaling.decide(Load(0, 0.0, False, 0), 100.0 + IDLE) == 0
    assert scaling.decide(Load(20, 0.1, True, 0), 100.0 + IDLE + 1) == 1  # no pause before that


def test_what_has_just_been_started_is_not_found_idle_before_it_is_ready() -> None:
    nothing = Load(0, 0.0, False, 0)
    fresh = PoolScaling(pool(), 1, 0.0, proven=False, start_seconds=900.0)
    assert fresh.decide(nothing._replace(coming=1), 10_000.0) == 1  # its job still waits in the queue
    assert fresh.decide(nothing, 10_001.0) == 1
    assert fresh.decide(nothing, 10_001.0 + IDLE) == 0
    assert fresh.decide(Load(9, 0.1, True, 0), 20_000.0) == 1
    assert (
        fresh.decide(nothing._replace(coming=1), 20_000.0 + 800) == 1
    )  # who asked has left: it may finish loading
    assert fresh.decide(nothing._replace(coming=1), 20_000.0 + 900 + IDLE) == 0


def test_the_warm_minimum_is_kept() -> None:
    scaling = PoolScaling(pool(least=3), 8, 0.0)
    assert scaling.decide(Load(0, 0.0, False, 0), 10 * IDLE) == 3


@pytest.mark.parametrize(("full", "most_turns"), [(1000, 6), (480, 40)])
def test_a_day_of_tides_makes_few_changes_and_keeps_requests_short(full: int, most_turns: int) -> None:
    """Replicas take 60 s to come, each works off 200 tokens/s; the tide goes from 2 % to 80 % of them and back.

    full: tokens that a busy replica has outstanding: as many as the aim, or fewer, so that the rules misjudge it.
    """
    made = pool(least=1, replicas=64)
    scaling, draw = PoolScaling(made, 1, 0.0, start_seconds=900.0), random.Random(4)
    running, coming, backlog = 1, list[float](), 0.0
    turns, last, used, late = 0, 0, 0, 0
    for now in range(0, 86_400, 2):
        running += sum(at <= now for at in coming)
        coming = [at for at in coming if at > now]
        share = 0.41 - 0.39 * math.cos(2 * math.pi * now / 86_400)
        arrived, most = 400 * 64 * share * draw.uniform(0.7, 1.3), 400.0 * running
        done = min(backlog + arrived, most)
        backlog += arrived - done
        oldest = backlog / (200 * running)
        late += oldest > 30
        load = Load(backlog + full * running * done / most, oldest, True, len(coming))
        before, after = scaling.wanted, scaling.decide(load, float(now))
        coming += [now + 60.0] * (after - before)
        if after < before:
            running -= max(0, before - after - len(coming))
            coming = coming[before - after :]
        direction = (after > before) - (after < before)
        if direction not in (0, last):
            turns, last = turns + 1, direction
        used += running
    assert turns <= most_turns
    assert late < 43_200 * 0.02
    assert used < 43_200 * 64 * 0.75  # the average tide is 41 %


def test_all_replicas_of_a_task_count_for_its_aim() -> None:
    made = msgspec.structs.replace(pool(per_task=4), replicas=30)
    assert (made.tasks, made.least_tasks, made.first_tasks) == (8, 0, 1)
    assert PoolScaling(made, 1, 0.0).decide(Load(9_000, 0.0, True, 0), 1.0) == 3
