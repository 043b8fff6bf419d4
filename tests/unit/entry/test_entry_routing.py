"""Laws of picking a replica."""

from __future__ import annotations

from collections import Counter

import pytest

from exahpc.entry.fleet import Replica
from exahpc.entry.routing import Router
from exahpc.wire import messages as m
from tests.unit.entry.fleets import ask, picked, replicas, router_of, routes, taken


def fleet(count: int, *, capacity: int = 100, weights: dict[int, float] | None = None) -> Router:
    return router_of(routes(count, capacity=capacity, weights=weights))


def test_a_small_fleet_always_takes_the_least_loaded() -> None:
    router = fleet(8)
    for number, replica in enumerate(replicas(router)):
        router.take(replica, 1, 100 - number)
    assert picked(router).slot == 7


def test_ties_are_spread() -> None:
    router = fleet(4)
    assert set(Counter(picked(router).slot for _ in range(200))) == {0, 1, 2, 3}


def test_two_choices_keep_a_big_fleet_level() -> None:
    router = fleet(500)
    for _ in range(5000):
        taken(router)
    loads = [r.sequences for r in replicas(router)]
    assert max(loads) <= 14  # one random choice would give above 20


def test_picking_looks_at_a_bounded_number_of_replicas_in_a_big_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    router = fleet(3072)
    looks = 0

    def load(replica: Replica, now: float) -> int:
        nonlocal looks
        looks += 1
        return replica.tokens

    monkeypatch.setattr(Replica, "load", load)
    for _ in range(100):
        picked(router)
    assert looks <= 200


def test_less_weight_gets_less_traffic_and_no_weight_none() -> None:
    router = fleet(3, weights={1: 0.5, 2: 0.0})
    for _ in range(90):
        taken(router)
    first, second, third = (r.sequences for r in replicas(router))
    assert (first, second, third) == (60, 30, 0)


def test_a_full_replica_is_not_picked_until_something_ends_there() -> None:
    router = fleet(1, capacity=2)
    only = picked(router)
    router.take(only, 2, 20)
    assert router.pick(ask(), 0.0) is None
    router.give_back(only, 1, 10)
    assert picked(router) is only


def test_several_choices_wait_for_a_replica_that_fits_them_but_an_idle_one_is_asked() -> None:
    router = fleet(1, capacity=4)
    only = picked(router)
    router.take(only, 2, 10)
    assert router.pick(ask(10, sequences=3), 0.0) is None
    router.give_back(only, 2, 10)
    assert router.pick(ask(10, sequences=9), 0.0) is only


def test_a_busy_replica_is_left_alone_longer_each_time_and_at_most_a_second() -> None:
    router = fleet(1)
    only, now, waits = picked(router), 0.0, []
    for _ in range(8):
        router.busy(only, now)
        assert router.pick(ask(), now) is None
        until = router.next_release()
        assert until is not None
        waits.append(until - now)
        now = until
        assert picked(router, now=now) is only
    assert waits == sorted(waits)
    assert waits[0] < 0.05
    assert waits[-1] < 1.0
    router.served(only)
    router.busy(only, now)
    assert router.next_release() == pytest.approx(now + waits[0])


def test_room_lets_a_busy_replica_go_unless_it_is_the_report_of_that_very_busy_answer() -> None:
    router = fleet(1)
    only = picked(router)
    for _ in range(4):
        router.busy(only, 10.0)
    router.room(only.agent, [m.Load(0, 500)], 10.001)
    assert router.pick(ask(), 10.001) is None
    router.room(only.agent, [m.Load(0, 100)], 10.05)
    assert picked(router, now=10.05) is only


def test_reports_of_other_entries_load_count_for_a_while() -> None:
    router = fleet(2)
    first, second = replicas(router)
    router.take(second, 1, 50)
    router.room(first.agent, [m.Load(0, 1000)], 1.0)
    assert picked(router, now=1.5) is second
    assert picked(router, now=9.0) is first


def test_the_replica_that_just_failed_is_shunned_unless_it_is_alone() -> None:
    router = fleet(2)
    first, second = replicas(router)
    router.take(second, 1, 5000)
    assert all(picked(router, ask(shun=first)) is second for _ in range(20))
    router.link(second.agent, False)
    assert picked(router, ask(shun=first)) is first
