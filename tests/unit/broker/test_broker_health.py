"""Health of replicas, law by law: each way into a state and out of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, get_args

import pytest

from exahpc.broker.health import AGAIN_SECONDS, LONGEST_REST, MOST_TRIPS, Health
from exahpc.broker.illness import TRANSITIONS, WEIGHTS, HandBack, Order, Restart, Sign, State, Weigh
from exahpc.deployment.policy import Health as Keys
from exahpc.errors import StateError
from exahpc.wire.messages import ReplicaState, Service

KEYS = Keys(window_requests=8, probes=3, rest_seconds=30.0, silence_seconds=10.0, most_tripped=0.25)
FAST, SLOW = 0.02, 0.2


@dataclass
class Ward:
    """A fleet of one replica a task, as the broker hears it. Each has answered many requests by each `window`."""

    size: int
    keys: Keys = KEYS
    hand_back: bool = True
    now: float = 0.0
    states: dict[int, ReplicaState] = field(default_factory=dict)
    orders: list[Order] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.health = Health(self.keys, self.size, self.now, hand_back=self.hand_back)
        for number in range(self.size):
            self.health.up(f"a/{number}", "group", "traffic", f"n{number}")
            self.tell(number, tbt=FAST)

    def tell(self, number: int, tbt: float = FAST, **changes: Any) -> list[Order]:
        """One beat of a replica that has answered ten more requests."""
        old = self.states.get(number, ReplicaState(number, 1, "ready"))
        service = Service(old.service.served + 10, old.service.failed, old.service.odd, 0.1, tbt, 8)
        fields = {"slot": number, "incarnation": old.incarnation, "phase": "ready", "service": service}
        state = ReplicaState(**{**fields, "tokens": old.tokens + 100, **changes})
        self.states[number] = state
        made = self.health.heard(f"a/{number}", [state], self.now)
        self.orders += made
        return made

    def window(self, slow: dict[int, float] | None = None, **changes: Any) -> list[Order]:
        """A whole window in which everybody works, those of `slow` with this time between tokens."""
        before = len(self.orders)
        for number in range(self.size):
            self.tell(number, (slow or {}).get(number, FAST), **changes)
        self.now += self.keys.window_seconds
        self.orders += self.health.tick(self.now)
        return self.orders[before:]

    def pass_time(self, seconds: float) -> list[Order]:
        """Nothing is heard meanwhile."""
        made: list[Order] = []
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 1.0)
            made += self.health.tick(self.now)
        self.orders += made
        return made

    def state(self, number: int) -> str:
        return next((s for _, s, _ in self.health.ill(f"a/{number}")), "healthy")

    def weight(self, number: int) -> float:
        found = [o for o in self.orders if isinstance(o, Weigh) and o.slot == number]
        return found[-1].weight if found else 1.0


def kinds(orders: list[Order]) -> list[type]:
    return [type(order) for order in orders]


def tripped(keys: Keys = KEYS, **options: Any) -> Ward:
    ward = Ward(8, keys, **options)
    for _ in range(keys.windows):
        ward.window({0: SLOW})
    assert ward.state(0) == "tripped"
    return ward


# --- the table ------------------------------------------------------------------------------------------------


def test_every_state_has_a_weight_a_way_in_and_a_way_out() -> None:
    assert set(WEIGHTS) == set(get_args(State))
    for state in get_args(State):
        assert any(after == state for (before, _), after in TRANSITIONS.items() if before != state)
        assert any(before == state and after != state for (before, _), after in TRANSITIONS.items()) or (
            state == "healthy"
        )
        assert TRANSITIONS[state, "reborn"] == "healthy"
    assert {sign for _, sign in TRANSITIONS} == set(get_args(Sign))


def test_an_unknown_transition_raises_with_the_replica_and_its_story() -> None:
    ward = tripped()
    replica = ward.health._ill["a/0", 0]
    with pytest.raises(StateError, match=r"a/0 slot 0.1 cannot take 'moved' while 'tripped'"):
        replica.step("moved", "", 0.0)


# --- slow ones ------------------------------------------------------------------------------------------------


def test_a_hot_replica_loses_traffic_in_its_first_window_and_all_of_it_after_windows_in_a_row() -> None:
    ward = Ward(8)
    (order,) = ward.window({0: SLOW})
    assert isinstance(order, Weigh)
    assert (order.slot, order.weight, order.probe) == (0, WEIGHTS["degraded"], False)
    (order,) = ward.window({0: SLOW})
    assert isinstance(order, Weigh)
    assert (order.slot, order.weight, ward.state(0)) == (0, 0.0, "tripped")
    assert "10.0 times as slow as its peers" in order.what
    assert "200 ms between tokens (theirs 20 ms)" in order.what


def test_one_window_that_is_not_hot_begins_the_count_anew() -> None:
    ward = Ward(8)
    for _ in range(4):
        ward.window({0: SLOW})
        ward.window()
    assert ward.state(0) != "tripped"


def test_a_late_first_token_counts_like_slow_ones_between() -> None:
    ward = Ward(8)
    for _ in range(2):
        for number in range(8):
            ward.tell(number)
        late = Service(ward.states[3].service.served + 10, 0, 0, 0.5, FAST, 8)
        ward.tell(3, service=late)
        ward.now += 5
        ward.orders += ward.health.tick(ward.now)
    assert ward.state(3) == "tripped"


def test_a_warm_replica_gets_less_traffic_and_all_of_it_again_when_it_is_like_its_peers() -> None:
    ward = Ward(8)
    ward.window({0: 2.5 * FAST})
    assert (ward.state(0), ward.weight(0)) == ("degraded", 0.5)
    for _ in range(5):
        ward.window({0: 2.5 * FAST})
    assert ward.state(0) == "degraded", "warm is not hot, however long"
    ward.window()
    assert ward.state(0) == "degraded"
    ward.window()
    assert (ward.state(0), ward.weight(0)) == ("healthy", 1.0)


def test_a_degraded_replica_of_which_nothing_more_is_heard_is_healthy_after_a_rest() -> None:
    ward = Ward(8)
    ward.window({0: SLOW})
    ward.pass_time(KEYS.rest_seconds - 1)
    assert ward.state(0) == "degraded"
    ward.pass_time(2)
    assert (ward.state(0), ward.weight(0)) == ("healthy", 1.0)


def test_a_fleet_that_is_slow_as_a_whole_loses_nobody() -> None:
    ward = Ward(8)
    for tbt in (FAST, SLOW, 10 * SLOW):
        for _ in range(5):
            assert ward.window(dict.fromkeys(range(8), tbt)) == []


def test_what_is_fast_enough_is_not_compared() -> None:
    ward = Ward(8)
    for _ in range(5):
        assert ward.window({n: 0.0001 if n else 0.004 for n in range(8)}) == []


def test_of_two_replicas_none_is_tripped_and_one_alone_is_not_even_judged() -> None:
    pair = Ward(2)
    for _ in range(5):
        pair.window({0: SLOW})
    assert (pair.state(0), pair.state(1)) == ("degraded", "healthy")
    alone = Ward(1)
    for _ in range(5):
        assert alone.window({0: SLOW}) == []


def test_never_more_than_the_share_is_tripped_and_the_slowest_go_first() -> None:
    ward = Ward(16)
    slow = {number: SLOW * (1 + number) for number in range(6)}
    for _ in range(6):
        ward.window(slow)
    out = [number for number in range(16) if ward.state(number) == "tripped"]
    assert out == [2, 3, 4, 5], "a quarter of 16"
    assert [ward.state(number) for number in (0, 1)] == ["degraded", "degraded"]


def test_the_share_is_of_the_whole_fleet_whatever_groups_there_are() -> None:
    ward = Ward(16, Keys(window_requests=8, most_tripped=0.07))
    for number in range(8, 16):
        ward.health.up(f"a/{number}", "other", "traffic", f"n{number}")
        ward.tell(number)
    for _ in range(3):
        ward.window({0: SLOW, 8: 2 * SLOW})
    assert [ward.state(number) for number in (0, 8)] == ["tripped", "degraded"], "two at once"
    for _ in range(3):
        ward.window({0: SLOW, 8: 2 * SLOW})
    assert ward.state(8) == "degraded", "one after the other"


def test_the_share_is_of_each_group_too() -> None:
    ward = Ward(40)
    for number in range(5):
        ward.health.up(f"a/{number}", "other", "traffic", f"n{number}")
        ward.tell(number)
    for _ in range(3):
        ward.window({0: SLOW})
    for _ in range(3):
        ward.window({1: SLOW})
    assert [ward.state(number) for number in (0, 1)] == ["tripped", "degraded"]


def test_a_restarted_replica_that_is_ready_again_makes_room_for_others() -> None:
    ward = tripped(Keys(window_requests=8, rest_seconds=30.0, most_tripped=0.0), hand_back=False)
    ward.tell(0, incarnation=2, phase="loading", tokens=0, service=Service())
    for _ in range(3):
        for number in range(1, 8):
            ward.tell(number, SLOW if number == 1 else FAST)
        ward.now += 5
        ward.orders += ward.health.tick(ward.now)
    assert ward.state(1) == "degraded", "the one that loads is not back yet"
    for _ in range(3):
        ward.window({1: SLOW})
    assert ward.state(1) == "tripped"


def test_one_replica_may_always_be_tripped_but_not_the_last_of_its_group() -> None:
    ward = Ward(3, Keys(window_requests=8, most_tripped=0.0))
    for _ in range(4):
        ward.window({0: SLOW, 1: 2 * SLOW})
    assert [ward.state(number) for number in range(3)].count("tripped") == 0, "two of three set the norm"
    for _ in range(4):
        ward.window({0: SLOW})
    assert ward.state(0) == "tripped"
    all_may = Ward(4, Keys(window_requests=8, most_tripped=1.0))
    for round_ in range(12):
        all_may.window({n: FAST * 5 ** (3 - n if round_ % 2 else n) for n in range(4)})
    assert any(all_may.weight(number) > 0 for number in range(4))


def test_replicas_of_other_groups_are_not_compared() -> None:
    ward = Ward(8)
    for number in range(4):
        ward.health.up(f"a/{number}", "other", "traffic", f"n{number}")
    for _ in range(5):
        assert ward.window(dict.fromkeys(range(4), SLOW)) == []


def test_a_replica_that_does_far_more_than_its_peers_is_loaded_not_slow() -> None:
    ward = Ward(8)
    for _ in range(5):
        for number in range(8):
            ward.tell(number, token_rate=50.0)
        ward.tell(0, SLOW, token_rate=110.0)
        ward.tell(1, SLOW, token_rate=90.0)
        ward.now += 5
        ward.orders += ward.health.tick(ward.now)
    assert [ward.state(number) for number in range(3)] == ["healthy", "tripped", "healthy"]


def test_few_requests_are_no_proof() -> None:
    ward = Ward(8)
    for _ in range(5):
        for number in range(8):
            old = ward.states[number].service
            ward.tell(number, service=Service(old.served + 1, 0, 0, 0.1, FAST if number else SLOW, 1))
        ward.now += 5
        assert ward.health.tick(ward.now) == []


def test_a_replica_that_is_not_heard_keeps_its_state() -> None:
    ward = Ward(8)
    ward.window({0: SLOW})
    for _ in range(3):
        for number in range(1, 8):
            ward.tell(number)
        ward.now += 5
        assert ward.health.tick(ward.now) == [], "its old figures are no news"
    assert ward.state(0) == "degraded"


def test_a_replica_whose_answers_are_bad_is_tripped_however_fast_it_is() -> None:
    ward = Ward(8)
    for _ in range(2):
        for number in range(8):
            ward.tell(number)
        old = ward.states[0].service
        ward.tell(0, service=Service(old.served, old.failed + 10, 0, 0.01, 0.01, 8))
        old = ward.states[1].service
        ward.tell(1, service=Service(old.served + 10, 0, old.odd + 8, 0.01, 0.01, 8))
        ward.now += 5
        ward.orders += ward.health.tick(ward.now)
    assert [ward.state(number) for number in range(3)] == ["tripped", "tripped", "healthy"]
    assert "of its answers are failed or senseless" in ward.health.ill("a/0")[0][2]


def test_a_model_that_talks_nonsense_everywhere_costs_no_replica() -> None:
    ward = Ward(8)
    for _ in range(5):
        for number in range(8):
            old = ward.states[number].service
            ward.tell(number, service=Service(old.served + 10, 0, old.odd + 9, 0.1, FAST, 8))
        ward.now += 5
        assert ward.health.tick(ward.now) == []


# --- the way back ---------------------------------------------------------------------------------------------


def test_a_tripped_replica_is_probed_after_its_rest_and_healthy_after_good_answers() -> None:
    ward = tripped()
    assert ward.pass_time(KEYS.rest_seconds - 1) == []
    (order,) = ward.pass_time(2)
    assert isinstance(order, Weigh)
    assert (order.weight, order.probe, ward.state(0)) == (WEIGHTS["probing"], True, "probing")
    assert ward.pass_time(60) == [], "nothing is known as long as nobody asks it"
    old = ward.states[0].service
    ward.tell(0, service=Service(old.served + 2, 0, 0, 0.1, FAST, 2))
    ward.pass_time(5)
    assert ward.state(0) == "probing", "two are not enough"
    ward.tell(0, service=Service(old.served + 3, 0, 0, 0.1, FAST, 3))
    ward.pass_time(5)
    assert (ward.state(0), ward.weight(0)) == ("healthy", 1.0)


@pytest.mark.parametrize("ill", ["slow", "failed", "odd"])
def test_a_replica_that_fails_its_probes_rests_twice_as_long(ill: str) -> None:
    ward = tripped()
    ward.pass_time(KEYS.rest_seconds)
    assert ward.state(0) == "probing"
    old = ward.states[0].service
    bad = {
        "slow": Service(old.served + 3, 0, 0, 0.1, SLOW, 3),
        "failed": Service(old.served + 1, 2, 0, 0.1, FAST, 3),
        "odd": Service(old.served + 3, 0, 2, 0.1, FAST, 3),
    }
    for number in range(1, 8):
        ward.tell(number)
    ward.tell(0, service=bad[ill])
    ward.pass_time(5)
    assert ward.state(0) == "tripped"
    assert ward.pass_time(2 * KEYS.rest_seconds - 1) == []
    ward.pass_time(1)
    assert ward.state(0) == "probing"


def test_what_ended_badly_before_the_rest_was_over_does_not_count_as_a_probe() -> None:
    ward = tripped(Keys(window_requests=20, rest_seconds=KEYS.rest_seconds))
    old = ward.states[0].service
    ward.tell(0, service=Service(old.served + 4, 0, old.odd + 4, 0.1, FAST, 8))
    ward.pass_time(KEYS.rest_seconds)
    old = ward.states[0].service
    ward.tell(0, service=Service(old.served + 3, 0, old.odd, 0.1, FAST, 3))
    ward.pass_time(5)
    assert ward.state(0) == "healthy"


def test_bad_answers_of_a_new_incarnation_count_from_its_first_one_on() -> None:
    ward = Ward(8)
    ward.window()
    ward.tell(0, incarnation=2, tokens=0, service=Service())
    for _ in range(KEYS.windows):
        for number in range(1, 8):
            ward.tell(number)
        old = ward.states[0].service
        ward.tell(0, service=Service(old.served + 3, 0, old.odd + 3, 0.1, FAST, 3))
        ward.now += 5
        ward.orders += ward.health.tick(ward.now)
    assert ward.state(0) == "tripped"


def test_an_agent_that_was_restarted_counts_answers_of_the_same_step_from_nothing() -> None:
    ward = Ward(8)
    for _ in range(5):
        ward.window()
    for served in (0, 5, 10, 15):
        for number in range(1, 8):
            ward.tell(number)
        ward.tell(0, service=Service(served, 0, served, 0.1, FAST, 8))
        ward.now += 5
        ward.orders += ward.health.tick(ward.now)
    assert ward.state(0) == "tripped"


def fail_probe(ward: Ward, after: float) -> list[Order]:
    ward.pass_time(after)
    assert ward.state(0) == "probing"
    return ward.window({0: SLOW})


def test_trips_in_a_row_end_in_a_restart_and_then_on_another_node() -> None:
    ward = tripped()
    fail_probe(ward, KEYS.rest_seconds)
    fail_probe(ward, 2 * KEYS.rest_seconds)
    assert MOST_TRIPS == 3
    made = ward.pass_time(1)
    assert kinds(made) == [Weigh, Restart]
    assert ward.state(0) == "restarting"
    ward.tell(0, incarnation=2, phase="loading")
    assert ward.state(0) == "healthy"
    for _ in range(KEYS.windows):
        ward.window({0: SLOW})
    made = ward.pass_time(1)
    assert kinds(made) == [Weigh, HandBack]
    assert "ill again after a restart" in made[1].why  # type: ignore[union-attr]
    ward.health.up("a/0", "group", "traffic", "another")
    ward.tell(0, incarnation=3)
    for _ in range(KEYS.windows):
        ward.window({0: SLOW})
    assert ward.state(0) == "tripped"
    assert ward.pass_time(1) == [], "what happened on another node does not count"


def test_where_a_task_cannot_run_elsewhere_it_is_restarted_once_more() -> None:
    ward = tripped(hand_back=False)
    fail_probe(ward, KEYS.rest_seconds)
    fail_probe(ward, 2 * KEYS.rest_seconds)
    ward.pass_time(1)
    ward.tell(0, incarnation=2)
    for _ in range(KEYS.windows):
        ward.window({0: SLOW})
    assert kinds(ward.pass_time(1)) == [Weigh, Restart]


def test_trips_are_forgiven_after_a_long_time_in_health() -> None:
    ward = tripped()
    fail_probe(ward, KEYS.rest_seconds)
    ward.pass_time(2 * KEYS.rest_seconds)
    ward.window()
    assert ward.state(0) == "healthy"
    for _ in range(int(LONGEST_REST * KEYS.rest_seconds / KEYS.window_seconds)):
        ward.window()
    for _ in range(KEYS.windows):
        ward.window({0: SLOW})
    assert ward.state(0) == "tripped"
    ward.pass_time(KEYS.rest_seconds)
    assert ward.state(0) == "probing", "it rests as for the first time, and is not restarted"


def test_a_new_incarnation_is_healthy() -> None:
    ward = tripped()
    (order,) = ward.tell(0, incarnation=2, phase="loading")
    assert order == Weigh("a/0", 0, 2, 1.0, False, order.what)  # type: ignore[union-attr]
    assert ward.state(0) == "healthy"


def test_the_last_words_of_an_older_incarnation_change_nothing() -> None:
    ward = Ward(3)
    ward.tell(0, incarnation=2)
    assert ward.tell(0, incarnation=1, step_age=99.0, token_age=99.0) == []
    assert ward.state(0) == "healthy"


# --- silent ones ----------------------------------------------------------------------------------------------


def silent(age: float, **changes: Any) -> dict[str, Any]:
    return {"step_age": age, "token_age": age, "running": 3, **changes}


def test_a_silent_replica_is_out_and_restarted_with_the_beat_that_tells_it() -> None:
    ward = Ward(8)
    assert ward.tell(0, **silent(4.9)) == []
    (order,) = ward.tell(0, **silent(5.1))
    assert isinstance(order, Weigh)
    assert (order.weight, ward.state(0)) == (WEIGHTS["degraded"], "degraded")
    made = ward.tell(0, **silent(10.0))
    assert kinds(made) == [Weigh, Weigh, Restart]
    assert made[2] == Restart("a/0", 0, 1, made[2].why)  # type: ignore[union-attr]
    assert "no step for 10 s with 3 requests running" in made[2].why  # type: ignore[union-attr]
    assert ward.weight(0) == 0
    assert ward.tell(0, **silent(12.0)) == [], "ordered once"


def test_a_long_prompt_is_not_silence() -> None:
    ward = Ward(8)
    for age in range(0, 300, 2):
        assert ward.tell(0, token_age=float(age), step_age=1.0, running=1) == []


def test_without_work_nobody_is_silent() -> None:
    ward = Ward(8)
    assert ward.pass_time(600) == []


def test_idle_accelerators_tell_of_silence_earlier() -> None:
    ward = Ward(8)
    service = Service(100, 0, 0, 0.1, FAST, 8, utilization=0.0)
    made = ward.tell(0, **silent(5.0), service=service)
    assert kinds(made) == [Weigh]
    assert (ward.state(0), ward.weight(0)) == ("silent", 0.0)
    ward.tell(0, **silent(0.5), service=service)
    assert (ward.state(0), ward.weight(0)) == ("degraded", 0.5), "it computes again, and was not restarted"


def test_a_restart_that_shows_no_effect_is_ordered_again() -> None:
    ward = Ward(8)
    ward.tell(0, **silent(10.0))
    ward.pass_time(AGAIN_SECONDS - 1)
    assert kinds(ward.pass_time(2)) == [Weigh, Restart]
    ward.tell(0, phase="draining")
    assert ward.pass_time(5 * AGAIN_SECONDS) == [], "it is on its way"


def test_the_only_replica_is_restarted_but_keeps_its_traffic_until_then() -> None:
    ward = Ward(1)
    made = ward.tell(0, **silent(10.0))
    assert kinds(made)[-1] is Restart
    assert ward.weight(0) > 0


def test_a_replica_that_falls_quiet_after_a_long_idle_time_is_not_forgiven_at_once() -> None:
    ward = Ward(8)
    ward.pass_time(600)
    ward.tell(0, **silent(6.0))
    assert ward.pass_time(1) == []
    assert ward.state(0) == "degraded"


def test_a_silent_replica_that_is_the_only_one_of_its_shape_is_out_when_others_can_stand_in() -> None:
    ward = Ward(3)
    ward.health.up("a/0", "other shape", "traffic", "n0")
    ward.tell(0, **silent(10.0))
    assert ward.weight(0) == 0


def test_restarts_are_paced_and_those_who_wait_for_theirs_are_out_of_traffic() -> None:
    ward = Ward(64)
    for number in range(20):
        ward.tell(number, **silent(10.0))
    assert sum(isinstance(order, Restart) for order in ward.orders) == 4
    assert all(ward.weight(number) == 0 for number in range(20))
    ward.tell(19, **silent(0.0))
    ward.pass_time(160)
    assert sum(isinstance(order, Restart) for order in ward.orders if order.slot < 20) >= 19  # type: ignore[union-attr]
    assert ward.state(19) in ("degraded", "healthy"), "it came back by itself"


def test_when_half_of_the_fleet_is_silent_nothing_is_done() -> None:
    ward = Ward(32)
    ward.window()
    before = len(ward.orders)
    for age in (2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 60.0):
        for number in range(24):
            ward.tell(number, **silent(age))
        ward.pass_time(2)
    assert not any(isinstance(order, Restart) for order in ward.orders)
    assert sum(ward.weight(number) > 0 for number in range(32)) == 32
    assert any("look at the network" in note for note in ward.health.notes())
    for number in range(24):
        ward.tell(number)
    assert not any("look at the network" in note for note in ward.health.notes())
    ward.pass_time(60)
    assert all(ward.state(number) == "healthy" for number in range(32)), ward.orders[before:]


def test_who_waits_for_a_restart_is_not_restarted_when_half_of_the_fleet_falls_silent() -> None:
    ward = Ward(64)
    for number in range(20):
        ward.tell(number, **silent(10.0))
    for number in range(20, 50):
        ward.tell(number, **silent(10.0))
    given = sum(isinstance(order, Restart) for order in ward.orders)
    ward.pass_time(15)
    assert sum(isinstance(order, Restart) for order in ward.orders) == given


def test_silent_replicas_whose_agents_are_gone_do_not_make_half_of_the_fleet() -> None:
    ward = Ward(12)
    for number in range(7):
        ward.tell(number, **silent(9.0))
    for number in range(6):
        ward.health.down(f"a/{number}")
    assert kinds(ward.tell(6, **silent(10.0)))[-1] is Restart


def test_the_silence_of_an_agent_says_nothing_about_its_replicas() -> None:
    ward = tripped()
    ward.health.down("a/1")
    ward.health.down("a/0")
    assert ward.pass_time(600) == []
    ward.health.up("a/0", "group", "traffic", "n0")
    ward.tell(0)
    assert ward.state(0) == "tripped", "the same step is as ill as before"
    ward.pass_time(1)
    assert ward.state(0) == "probing"


# --- the next broker ------------------------------------------------------------------------------------------


def test_a_new_broker_keeps_out_whom_its_predecessor_had_out() -> None:
    before = [
        ("a/0", 0, 1, 0.0, False),
        ("a/1", 1, 1, 0.5, False),
        ("a/2", 2, 1, 0.1, True),
        ("a/3", 3, 7, 0.0, False),
    ]
    health = Health(KEYS, 4, 0.0, before=before)
    for number in range(4):
        health.up(f"a/{number}", "group", "traffic", "n")
        health.heard(f"a/{number}", [ReplicaState(number, 8 if number == 3 else 1, "ready")], 0.0)
    assert [health.ill(f"a/{n}") and health.ill(f"a/{n}")[0][1] for n in range(4)] == [
        "tripped", "degraded", "tripped", [],
    ]  # fmt: skip
    assert kinds(health.tick(KEYS.rest_seconds)) == [Weigh, Weigh, Weigh], "each has its way back"
