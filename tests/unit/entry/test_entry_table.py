"""Laws of taking over fleet tables."""

from __future__ import annotations

from exahpc.entry.routing import Router
from exahpc.wire import messages as m
from tests.unit.entry.fleets import ask, picked, replicas, router_of, routes, taken


def fleet(count: int) -> Router:
    return router_of(routes(count))


def agent(incarnation: int, *replicas: m.Route) -> m.AgentRoute:
    return m.AgentRoute("a", 0, incarnation, f"address {incarnation}", list(replicas))


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
    old = picked(router)
    changes = router.update(m.FleetTable(1, 2, [m.AgentRoute("a", 0, 1, "x", [m.Route(0, 2, 4)])]), 0.0)
    assert changes is not None
    assert changes.reborn == [old]
    assert picked(router).incarnation == 2
    changes = router.update(m.FleetTable(1, 3, [m.AgentRoute("a", 0, 2, "y", [m.Route(0, 2, 4)])]), 0.0)
    assert changes is not None
    assert [a.key.incarnation for a in changes.replaced] == [1]
    assert [a.address for a in changes.opened] == ["y"]


def test_an_agent_that_stands_in_the_table_without_replicas_keeps_what_it_runs_and_gets_nothing_new() -> None:
    router = router_of([agent(1, m.Route(0, 1, 4))])
    old = taken(router)
    changes = router.update(m.FleetTable(1, 2, [agent(1)]), 0.0)
    assert changes == ([], [], [])
    assert router.expire(0.0) == []
    assert (old.sequences, router.pick(ask(), 0.0)) == (1, None)


def test_a_successor_beside_its_predecessor_replaces_nothing_until_that_one_leaves_the_table() -> None:
    router = router_of([agent(1, m.Route(0, 1, 4))])
    old = taken(router)
    handed_over = [agent(1), agent(2, m.Route(0, 1, 4))]
    for version, table in ((2, handed_over), (3, handed_over[::-1])):
        changes = router.update(m.FleetTable(1, version, table), 0.0)
        assert changes is not None
        assert (changes.replaced, changes.reborn) == ([], [])
        for opened in changes.opened:
            router.link(opened, True)
    assert old.sequences == 1
    assert picked(router).agent.key.incarnation == 2
    changes = router.update(m.FleetTable(1, 4, [agent(2, m.Route(0, 1, 4))]), 0.0)
    assert changes is not None
    assert changes.replaced == [old.agent]
    assert router.expire(0.0) == [old.agent]


def test_a_new_broker_that_knows_only_the_successor_takes_nothing_from_its_predecessor_at_once() -> None:
    router = router_of([agent(1, m.Route(0, 1, 4))])
    old = taken(router)
    router.update(m.FleetTable(1, 2, [agent(1), agent(2, m.Route(0, 1, 4))]), 0.0)
    changes = router.update(m.FleetTable(2, 1, [agent(2, m.Route(0, 1, 4))]), 0.0)
    assert changes is not None
    assert changes.replaced == []
    assert router.expire(5.0) == []
    changes = router.update(m.FleetTable(2, 2, [agent(2, m.Route(0, 1, 4))]), 11.0)
    assert changes is not None
    assert changes.replaced == [old.agent]


def test_an_older_agent_in_the_table_replaces_nothing() -> None:
    router = router_of([agent(2, m.Route(0, 1, 4))])
    changes = router.update(m.FleetTable(1, 2, [agent(1, m.Route(0, 1, 4))]), 0.0)
    assert changes is not None
    assert changes.replaced == []


def test_groups_of_agents_that_are_gone_do_not_pile_up() -> None:
    router = router_of(routes(2))
    for number in range(2, 50):
        router.update(m.FleetTable(1, number, routes(2, first=2 * number, version=f"v{number}")), 0.0)
        for gone in router.expire(0.0):
            router.forget(gone)
    assert len(list(router._roster.groups)) <= 2


def test_an_agent_whose_pool_got_another_length_class_is_still_one_agent() -> None:
    router = router_of(routes(2))
    old = picked(router).agent
    table = routes(1, length="short") + routes(1, first=1)
    router.update(m.FleetTable(1, 2, table), 0.0)
    assert len(router.agents) == 2
    assert {picked(router).slot for _ in range(50)} == {0, 1}
    router.link(old, False)
    assert {picked(router).agent for _ in range(50)} == {a for a in router.agents.values() if a is not old}


def test_every_open_replica_stands_in_the_list_of_its_group_at_the_place_that_it_knows() -> None:
    router = router_of(routes(40, capacity=3))
    running = [taken(router) for _ in range(70)]
    for replica in running[::2]:
        router.give_back(replica, 1, 10)
    for replica in replicas(router)[::3]:
        router.busy(replica, 0.0)
    (group,) = {a.group for a in router.agents.values()}
    standing = {}
    for level, home in enumerate(group.open):
        for place, replica in enumerate(home):
            assert (replica.level, replica.place) == (level, place)
            standing[id(replica)] = replica
    assert standing
    assert all(r.place == -1 for r in replicas(router) if id(r) not in standing)
