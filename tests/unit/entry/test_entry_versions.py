"""Laws of versions: who goes to which, and that none are mixed."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exahpc.deployment.parse import load
from exahpc.entry.actions import Tell
from exahpc.entry.app import Gateway
from exahpc.entry.desk import Desk
from exahpc.entry.versions import LOTS, Shares
from exahpc.errors import RequestError
from exahpc.wire import messages as m
from exahpc.wire.messages import Share
from tests.unit.entry.fleets import ask, picked, replicas, router_of, routes, taken

OLD, NEW = [Share("", 0.9), Share("v2", 0.1)], [Share("v2", 1.0)]


def table(shares: list[Share], **over: int) -> m.FleetTable:
    agents = routes(10, **over) + routes(10, first=10, version="v2", **over)
    return m.FleetTable(1, 2, agents, shares)


def test_requests_that_name_no_version_are_drawn_by_the_shares() -> None:
    router = router_of(routes(10) + routes(10, first=10, version="v2"), shares=OLD)
    found = Counter(picked(router).agent.version for _ in range(2000))
    assert 130 < found["v2"] < 270


def test_without_shares_every_replica_may_take_any_request() -> None:
    router = router_of(routes(1) + routes(1, first=1, version="v2"))
    assert {picked(router).agent.version for _ in range(50)} == {"", "v2"}


def test_a_named_version_is_kept_whatever_the_shares_say() -> None:
    router = router_of(routes(2, capacity=1) + routes(2, first=2, version="v2", capacity=1), shares=NEW)
    named = ask(version="")
    assert [taken(router, named).agent.version for _ in range(2)] == ["", ""]
    assert router.pick(named, 0.0) is None
    assert router.pick(ask(version="v9"), 0.0) is None


def test_what_finds_no_room_at_its_version_goes_to_the_one_with_the_largest_share_and_nowhere_else() -> None:
    router = router_of(routes(1, capacity=9) + routes(1, first=1, version="v2", capacity=1), shares=OLD)
    old, new = replicas(router)
    trial, usual = ask(), ask()
    trial.lot, usual.lot = LOTS - 1, 0
    assert taken(router, trial) is new
    assert taken(router, trial) is old
    while old.sequences < 9:
        router.take(old, 1, 1)
    router.give_back(new, 1, 10)
    assert router.pick(usual, 0.0) is None
    assert router.pick(trial, 0.0) is new


def test_who_is_tried_again_does_not_draw_again() -> None:
    router = router_of(routes(1, capacity=1) + routes(1, first=1, version="v2"), shares=OLD)
    old, _ = replicas(router)
    router.take(old, 1, 1)
    usual = ask()
    usual.lot = 0
    assert all(router.pick(usual, 0.0) is None for _ in range(100))


def test_new_shares_count_for_who_waits() -> None:
    router = router_of(routes(1), shares=OLD)
    waiting = ask()
    waiting.lot = 0
    router.update(m.FleetTable(1, 2, routes(1) + routes(1, first=1, version="v2"), NEW), 0.0)
    for agent in router.agents.values():
        router.link(agent, True)
    assert picked(router, waiting).agent.version == "v2"


def test_requests_that_can_go_to_different_replicas_wait_in_different_lanes() -> None:
    router = router_of(routes(1))
    assert router.lane(ask()) == router.lane(ask()) == ""
    router = router_of(routes(1) + routes(1, first=1, version="v2"), shares=OLD)
    usual, trial, named = ask(), ask(), ask(version="v2")
    usual.lot, trial.lot = 0, LOTS - 1
    assert len({router.lane(usual), router.lane(trial), router.lane(named)}) == 3
    assert router.lane(ask(version="v2")) == router.lane(named)


def test_the_versions_that_can_be_asked_for_are_those_in_the_table() -> None:
    router = router_of(routes(1) + routes(1, first=1, version="v2"))
    assert router.versions == {"", "v2"}
    router.update(m.FleetTable(1, 2, routes(1, first=1, version="v2")), 0.0)
    assert router.versions == {"v2"}
    router.update(m.FleetTable(1, 3, [], asleep=True), 0.0)
    assert router.versions == {"v2"}, "it will come back"


def test_before_any_agent_is_known_another_version_than_the_first_is_not_refused_for_good() -> None:
    desk = Desk(load(TOML), lambda n: 0)
    gateway = Gateway(load(TOML), cast(Any, None), 0, cast(Any, None), cast(Any, None))
    gateway.dispatch = cast(Any, SimpleNamespace(desk=desk))

    def asked(name: str) -> str | int | None:
        try:
            return gateway._version(name)
        except RequestError as error:
            return error.status

    names = ("tiny", "tiny@base", "tiny@v2", "other")
    assert [asked(name) for name in names] == [None, "", 503, 404]
    desk.table(m.FleetTable(1, 1, routes(1)), 0.0)
    assert [asked(name) for name in names] == [None, "", 404, 404]


@given(st.lists(st.floats(0, 1), max_size=4), st.integers(0, LOTS - 1))
def test_every_lot_stands_for_a_version_that_has_a_share(parts: list[float], lot: int) -> None:
    shares = Shares([Share(f"v{number}", part) for number, part in enumerate(parts)])
    assert bool(shares) == any(parts)
    if shares:
        first, *rest = shares.of(lot)
        assert parts[int(first[1:])] > 0
        assert all(parts[int(version[1:])] == max(parts) for version in rest)


@pytest.mark.parametrize("scale", [1.0, 0.25, 3.0])
def test_shares_need_not_add_up_to_one(scale: float) -> None:
    shares = Shares([Share("a", 0.75 * scale), Share("b", 0.25 * scale)])
    found = Counter(shares.of(lot)[0] for lot in range(0, LOTS, LOTS // 1000))
    assert found["a"] == pytest.approx(750, abs=2)


TOML = """
name = "unit"
[model]
path = "/nowhere/tiny"
[[pool]]
name = "a"
replicas = 4
[launcher]
kind = "local"
"""


@pytest.mark.parametrize("emitted", [False, True])
def test_who_has_a_part_of_its_answer_goes_on_at_the_same_version_and_anyone_else_anywhere(emitted: bool) -> None:
    desk = Desk(load(TOML), lambda n: 0)
    desk.table(m.FleetTable(1, 1, [*routes(1), *routes(1, first=1, version="v2")], OLD), 0.0)
    for agent in list(desk.router.agents.values()):
        desk.link_up(agent, 0.0)
    old, new = replicas(desk.router)
    record = ask()
    (tell,) = desk.open(record, 0.0)
    assert isinstance(tell, Tell)
    assert tell.agent is old.agent
    if emitted:
        desk.frames(old.agent, [m.Frame("r", 1, 0, 0, [5], 1, b"x")], 0.0)
    desk.table(m.FleetTable(1, 2, [*routes(0), *routes(1, first=1, version="v2")], NEW), 0.0)
    actions = desk.link_lost(old.agent, 0.0)
    assert [a.agent for a in actions if isinstance(a, Tell)] == ([] if emitted else [new.agent])
    again = routes(1, first=2)
    for action in desk.table(m.FleetTable(1, 3, again, NEW), 0.0):
        assert not isinstance(action, Tell)
    (third,) = (a for a in desk.router.agents.values() if a.key.task == 2)
    actions = desk.link_up(third, 0.0)
    assert [a.agent for a in actions if isinstance(a, Tell)] == ([third] if emitted else [])
