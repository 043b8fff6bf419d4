"""Laws of picking a replica."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from exahpc.entry.fleet import Replica
from exahpc.entry.routing import Router
from exahpc.wire import messages as m


def fleet(count: int, *, capacity: int = 100, weights: dict[int, float] | None = None, seed: int = 1) -> Router:
    """One agent a replica, all up."""
    dice = random.Random(seed)
    router = Router(dice.randrange)
    routes = [
        m.AgentRoute("a", t, 1, "x", [m.Route(t, 1, capacity, (weights or {}).get(t, 1.0))]) for t in range(count)
    ]
    router.update(m.FleetTable(1, 1, routes), 0.0)
    for agent in router.agents.values():
        router.link(agent, True)
    return router


def pick(router: Router, tokens: int = 10, now: float = 0.0, shun: Replica | None = None) -> Replica:
    found = router.pick(1, tokens, now, shun)
    assert found is not None
    return found


def replicas(router: Router) -> list[Replica]:
    return [r for a in router.agents.values() for r in a.replicas.values()]


def test_a_small_fleet_always_takes_the_least_loaded() -> None:
    router = fleet(8)
    for number, replica in enumerate(replicas(router)):
        router.take(replica, 1, 100 - number)
    assert pick(router).slot == 7


def test_ties_are_spread() -> None:
    router = fleet(4)
    assert set(Counter(pick(router).slot for _ in range(200))) == {0, 1, 2, 3}


def test_two_choices_keep_a_big_fleet_level() -> None:
    router = fleet(500)
    for _ in range(5000):
        router.take(pick(router), 1, 10)
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
        pick(router)
    assert looks <= 200


def test_less_weight_gets_less_traffic_and_no_weight_none() -> None:
    router = fleet(3, weights={1: 0.5, 2: 0.0})
    for _ in range(90):
        router.take(pick(router), 1, 10)
    first, second, third = (r.sequences for r in replicas(router))
    assert (first, second, third) == (60, 30, 0)


def test_a_full_replica_is_not_picked_until_something_ends_there() -> None:
    router = fleet(1, capacity=2)
    only = pick(router)
    router.take(only, 2, 20)
    assert router.pick(1, 10, 0.0) is None
    router.give_back(only, 1, 10)
    assert pick(router) is only


def test_several_choices_wait_for_a_replica_that_fits_them_but_an_idle_one_is_asked() -> None:
    router = fleet(1, capacity=4)
    only = pick(router)
    router.take(only, 2, 10)
    assert router.pick(3, 10, 0.0) is None
    router.give_back(only, 2, 10)
    assert router.pick(9, 10, 0.0) is only


def test_a_busy_replica_is_left_alone_longer_each_time_and_at_most_a_second() -> None:
    router = fleet(1)
    only, now, waits = pick(router), 0.0, []
    for _ in range(8):
        router.busy(only, now)
        assert router.pick(1, 10, now) is None
        until = router.next_release()
        assert until is not None
        waits.append(until - now)
        now = until
        assert pick(router, now=now) is only
    assert waits == sorted(waits)
    assert waits[0] < 0.05
    assert waits[-1] < 1.0
    router.served(only)
    router.busy(only, now)
    assert router.next_release() == pytest.approx(now + waits[0])


def test_room_lets_a_busy_replica_go_unless_it_is_the_report_of_that_very_busy_answer() -> None:
    router = fleet(1)
    only = pick(router)
    for _ in range(4):
        router.busy(only, 10.0)
    router.room(only.agent, [m.Load(0, 500)], 10.001)
    assert router.pick(1, 10, 10.001) is None
    router.room(only.agent, [m.Load(0, 100)], 10.05)
    assert pick(router, now=10.05) is only


def test_reports_of_other_entries_load_count_for_a_while() -> None:
    router = fleet(2)
    first, second = replicas(router)
    router.take(second, 1, 50)
    router.room(first.agent, [m.Load(0, 1000)], 1.0)
    assert pick(router, now=1.5) is second
    assert pick(router, now=9.0) is first


def test_the_replica_that_just_failed_is_shunned_unless_it_is_alone() -> None:
    router = fleet(2)
    first, second = replicas(router)
    router.take(second, 1, 5000)
    assert all(pick(router, shun=first) is second for _ in range(20))
    router.link(second.agent, False)
    assert pick(router, shun=first) is first


def test_a_lower_epoch_or_version_is_ignored() -> None:
    router = fleet(2)
    assert router.update(m.FleetTable(0, 99, []), 0.0) is None
    assert router.update(m.FleetTable(1, 1, []), 0.0) is None
    assert router.ready == 2


def test_a_new_broker_may_take_its_time_to_learn_the_fleet_but_not_forever() -> None:
    router = fleet(2)
    router.update(m.FleetTable(2, 1, []), 0.0)
    assert router.ready == 2
    router.expire(5.0)
    assert router.ready == 2
    assert len(router.expire(11.0)) == 2
    assert router.ready == 0


def test_within_an_epoch_a_missing_replica_leaves_at_once() -> None:
    router = fleet(2)
    router.update(m.FleetTable(1, 2, []), 0.0)
    assert router.ready == 0


def test_a_newer_incarnation_replaces_the_older_one() -> None:
    router = fleet(1)
    old = pick(router)
    changes = router.update(m.FleetTable(1, 2, [m.AgentRoute("a", 0, 1, "x", [m.Route(0, 2, 4)])]), 0.0)
    assert changes is not None
    assert changes.reborn == [old]
    assert pick(router).incarnation == 2
    changes = router.update(m.FleetTable(1, 3, [m.AgentRoute("a", 0, 2, "y", [m.Route(0, 2, 4)])]), 0.0)
    assert changes is not None
    assert [a.key.incarnation for a in changes.replaced] == [1]
    assert [a.address for a in changes.opened] == ["y"]
