"""Laws of who is asked gladly, and who only when nobody else is left: headroom, KV cache, probation, own node."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from exahpc.entry.fleet import Replica
from exahpc.entry.routing import PROBE_EVERY, Router
from exahpc.wire import messages as m
from tests.unit.entry.fleets import ask, picked, replicas, router_of, routes, taken


def fill(router: Router, replica: Replica, sequences: int, tokens: int = 0) -> None:
    router.take(replica, sequences, tokens)


def tell(router: Router, replica: Replica, *, sequences: int = 0, kv: float = 0.0, now: float = 0.0) -> None:
    router.room(replica.agent, [m.Load(replica.slot, replica.tokens, sequences, kv)], now)


def test_the_headroom_of_one_replica_is_used_only_when_no_other_one_has_room_below_its_own() -> None:
    for count in (4, 400):
        router = router_of(routes(count, capacity=10), headroom=0.2)
        first, *others = replicas(router)
        for replica in others:
            fill(router, replica, 8)
        fill(router, first, 7, tokens=100_000)  # the most loaded one, but below
        assert {picked(router) for _ in range(200)} == {first}
        fill(router, first, 1)
        assert len({picked(router) for _ in range(200)}) > 1


def test_without_headroom_every_place_is_as_good_as_the_next() -> None:
    router = router_of(routes(2, capacity=10), headroom=0.0)
    first, second = replicas(router)
    fill(router, first, 9, tokens=1)
    fill(router, second, 1, tokens=500)
    assert picked(router) is first


@given(capacity=st.integers(1, 100), headroom=st.floats(0, 0.9))
def test_an_idle_replica_is_never_in_its_headroom(capacity: int, headroom: float) -> None:
    router = router_of(routes(1, capacity=capacity), headroom=headroom)
    assert picked(router).comfort in range(1, capacity + 1)


def test_a_replica_whose_kv_cache_is_nearly_full_is_chosen_only_when_the_others_are_too() -> None:
    router = router_of(routes(3))
    first, second, third = replicas(router)
    fill(router, third, 99, tokens=100_000)
    for full in (first, second):
        tell(router, full, kv=0.95)
        assert full not in {picked(router) for _ in range(50)}
    tell(router, third, kv=0.95)
    assert picked(router) in (first, second)
    tell(router, third, kv=0.5)
    assert picked(router) is third


def test_a_replica_that_others_have_filled_is_not_asked_while_another_one_has_room() -> None:
    router = router_of(routes(2, capacity=10))
    first, second = replicas(router)
    fill(router, second, 8, tokens=9000)
    tell(router, first, sequences=10)
    assert picked(router) is second
    router.link(second.agent, False)
    assert picked(router) is first, "the agent has the last word"


def test_of_two_with_the_same_work_the_one_that_holds_less_kv_cache_is_chosen() -> None:
    router = router_of(routes(2))
    first, second = replicas(router)
    for replica in (first, second):
        fill(router, replica, 1, tokens=100)
    tell(router, first, kv=0.5)
    assert picked(router) is second


def test_what_is_known_of_the_kv_cache_stays_known_when_nothing_more_is_told() -> None:
    router = router_of(routes(2))
    first, second = replicas(router)
    tell(router, first, kv=0.95, now=0.0)
    assert picked(router, now=3600.0) is second


def test_a_new_link_begins_without_old_reports() -> None:
    router = router_of(routes(1, capacity=10))
    (only,) = replicas(router)
    tell(router, only, sequences=10, kv=0.95)
    router.link(only.agent, False)
    router.link(only.agent, True)
    assert (only.kv, only.crowd, only.load(0.0)) == (0.0, 0, 0)
    assert picked(router) is only


# --- probation ---------------------------------------------------------------------------------------------------


def test_a_replica_on_probation_soon_gets_a_request_and_never_two_at_once() -> None:
    router = router_of(routes(20) + routes(2, first=20, probe=True))
    tried = [r for r in replicas(router) if r.probe]
    for turn in range(1, 10 * PROBE_EVERY):
        taken(router)
        assert all(r.sequences <= 1 for r in tried)
        if turn >= 2 * PROBE_EVERY:
            assert all(r.sequences == 1 for r in tried)
    router.give_back(tried[0], 1, 10)
    assert tried[0] in {taken(router) for _ in range(PROBE_EVERY)}


def test_a_replica_on_probation_is_the_last_one_to_be_asked_beyond_that() -> None:
    router = router_of(routes(1, capacity=3) + routes(1, first=1, probe=True))
    well, tried = replicas(router)
    assert [taken(router) for _ in range(3)] == [well] * 3
    assert taken(router) is tried
    assert router.pick(ask(), 0.0) is None


def test_who_was_interrupted_is_not_sent_to_a_replica_on_probation() -> None:
    router = router_of(routes(1) + routes(1, first=1, probe=True))
    again = ask()
    again.deaths = 1
    assert {taken(router, again).probe for _ in range(3 * PROBE_EVERY)} == {False}


def test_probation_ends_with_the_table_that_says_so() -> None:
    router = router_of(routes(1, probe=True))
    (only,) = replicas(router)
    taken(router)
    assert router.pick(ask(), 0.0) is None
    router.update(m.FleetTable(1, 2, routes(1)), 0.0)
    assert picked(router) is only


def test_work_from_before_an_illness_counts_against_probation() -> None:
    router = router_of(routes(1))
    (only,) = replicas(router)
    taken(router)
    router.update(m.FleetTable(1, 2, routes(1, probe=True)), 0.0)
    assert router.pick(ask(), 0.0) is None
    router.give_back(only, 1, 10)
    assert picked(router) is only


# --- own node ----------------------------------------------------------------------------------------------------


def test_an_entry_beside_an_agent_goes_to_its_own_node_while_that_is_roomy_and_else_anywhere() -> None:
    table = routes(500, node="far", capacity=10) + routes(1, first=500, node="near", capacity=10)
    router = router_of(table, node="near", headroom=0.2)
    near = replicas(router)[-1]
    assert [taken(router) for _ in range(8)] == [near] * 8
    others = {taken(router) for _ in range(50)}
    assert near not in others
    assert len(others) > 20


def test_an_entry_of_the_head_has_no_node_of_its_own() -> None:
    router = router_of(routes(2))  # an agent that does not say where it runs is on nobody's node
    assert len({picked(router) for _ in range(50)}) == 2


# --- all together ------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_nobody_is_chosen_while_somebody_better_is_open(data: st.DataObject) -> None:
    capacity = 10
    router = router_of(routes(data.draw(st.integers(1, 12)), capacity=capacity), headroom=0.2)
    for replica in replicas(router):
        if own := data.draw(st.integers(0, capacity)):
            fill(router, replica, own, tokens=data.draw(st.integers(0, 99)))
        kv = data.draw(st.sampled_from([0.0, 0.5, 0.95]))
        tell(router, replica, sequences=data.draw(st.integers(0, capacity)), kv=kv)

    def rank(replica: Replica) -> int:
        full = max(replica.sequences, replica.sequences + replica.crowd) >= capacity or replica.kv > 0.9
        return 2 if full else int(replica.sequences + replica.crowd >= 8)

    takers = [r for r in replicas(router) if r.sequences < capacity]
    found = router.pick(ask(), 0.0)
    assert (found is None) == (not takers)
    if found is not None:
        assert rank(found) == min(map(rank, takers))
