"""Laws of alerts: held, told once, resolved once, never flapping."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exahpc.deployment.policy import Alerts
from exahpc.telemetry.alerts import LONGEST_STEP, Watchman, rules

HOLD, RESOLVE = 60.0, 120.0
SETTINGS = Alerts()
NAMES = ("error_rate", "p99", "utilization", "memory", "queue", "replicas")
BAD = {"error_rate": 0.5, "p99": 100.0, "utilization": 1.0, "memory": 1.0, "queue": 0.9, "replicas": 0.5}
GOOD = {"error_rate": 0.0, "p99": 0.1, "utilization": 0.1, "memory": 0.1, "queue": 0.0, "replicas": 1.0}


def run(steps: list[tuple[float, float | None]], name: str = "error_rate") -> list[tuple[float, str]]:
    """(seconds, value) one after the other -> what was told, and when."""
    watchman, now, told = Watchman(SETTINGS, 0.0), 0.0, []
    rule = next(rule for rule in rules(SETTINGS) if rule.name == name)
    for seconds, value in steps:
        now += seconds
        for one in watchman.look({name: value}, now):
            assert (one.value, value is None) == (value, False)
            assert rule.over(one.value or 0.0) == (one.state == "firing")
            told.append((now, one.state))
    return told


def test_there_are_six_by_default() -> None:
    assert tuple(rule.name for rule in rules(SETTINGS)) == NAMES


def test_a_threshold_of_0_switches_its_alert_off() -> None:
    off = Alerts(error_rate=0, p99_seconds=0, utilization=0, memory=0, queue=0, replicas=0)
    assert rules(off) == []


@pytest.mark.parametrize("name", NAMES)
def test_what_lasts_is_told_once_and_once_when_it_is_over(name: str) -> None:
    steps = [(10.0, BAD[name])] * 60 + [(10.0, GOOD[name])] * 60
    assert [state for _, state in run(steps, name)] == ["firing", "resolved"]


def test_what_does_not_last_is_not_told() -> None:
    assert run(([(10.0, 0.5)] * 6 + [(10.0, 0.0)]) * 20) == []


def test_a_value_on_the_line_is_one_alert() -> None:
    around = [(10.0, value) for value in (0.06, 0.045)] * 100  # threshold 0.05, resolved below 0.04
    assert run([(10.0, 0.06)] * 10 + around) == [(70.0, "firing")]


def test_what_is_not_known_changes_nothing_and_counts_as_no_time() -> None:
    assert run([(10.0, 0.5)] * 4 + [(10.0, None)] * 100 + [(10.0, 0.5)]) == []
    assert [s for _, s in run([(10.0, 0.5)] * 10 + [(10.0, None)] * 100)] == ["firing"]


def test_who_was_stopped_has_not_watched() -> None:
    assert run([(1.0, 0.5), (3600.0, 0.5)]) == []
    assert LONGEST_STEP < HOLD


def test_a_new_broker_does_not_tell_again_what_was_told() -> None:
    watchman = Watchman(SETTINGS, 0.0, ["queue", "gone by now"])
    told = [one for step in range(30) for one in watchman.look(BAD, 10.0 * step)]
    assert {one.alert for one in told} == set(NAMES) - {"queue"}
    assert set(watchman.firing) == set(NAMES)


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(
            st.floats(0.0, 100.0), st.one_of(st.none(), st.sampled_from([0.0, 0.03, 0.045, 0.05, 0.06, 1.0]))
        ),
        max_size=120,
    )
)
def test_alerts_alternate_and_keep_their_times(steps: list[tuple[float, float | None]]) -> None:
    told = run(steps)
    assert [state for _, state in told] == ["firing", "resolved"] * (len(told) // 2) + ["firing"] * (len(told) % 2)
    for (before, _), (after, state) in pairwise(told):
        assert after - before >= (RESOLVE if state == "resolved" else HOLD)


@given(st.sampled_from(NAMES), st.floats(0, 1))
def test_the_line_of_resolving_lies_clearly_beyond_the_one_of_firing(name: str, value: float) -> None:
    rule = next(rule for rule in rules(SETTINGS) if rule.name == name)
    assert not (rule.over(value) and rule.under(value))
    assert rule.over(BAD[name])
    assert rule.under(GOOD[name])


def test_every_rule_says_where_it_stands() -> None:
    watchman = Watchman(SETTINGS, 0.0)
    watchman.look({"error_rate": 0.071, "p99": None}, 10.0)
    alerts = {alert.name: alert for alert in watchman.alerts(15.0)}
    assert alerts["error_rate"].state == "pending"
    assert alerts["error_rate"].text == "7.1 % of requests fail (limit 5 %)"
    assert alerts["error_rate"].seconds == 5.0
    assert alerts["p99"].value is None
