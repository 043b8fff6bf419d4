"""Laws of the gates and of the arithmetic of traffic and capacity."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exahpc.broker.gates import LEAST_WINDOWS, SLOW_SECONDS, Figures, Verdict
from exahpc.broker.moving import Task, in_turn, may_move
from exahpc.broker.shares import cautious, eager, proportional
from exahpc.deployment.policy import Rollout as Gates
from exahpc.wire.messages import ReplicaPhase, ReplicaState, Service

GATES = Gates(samples=50, most_errors=0.02, slower=1.5)


def task(key: str, version: str, service: Service, incarnation: int = 1, restarts: int = 0) -> Task:
    replica = ReplicaState(0, incarnation, "ready", restarts=restarts, service=service)
    return Task(key, key[0], version, True, 1, 8, (replica,))


def figures(old: Service, new: Service, deaths: int = 0) -> Figures:
    """What is counted when a rollout begins at zero and both versions then come to these totals."""
    made = Figures("", "v2")
    made.absorb([task("a/0", "", Service())])
    made.absorb([task("a/0", "", old), task("a/1", "v2", new, restarts=deaths)])
    return made


def judge(made: Figures, now: float = 0.0, *, alone: bool = False, replicas: int = 1) -> Verdict:
    return made.judge(GATES, replicas, alone=alone, now=now)


def test_enough_good_requests_of_both_are_good() -> None:
    assert judge(figures(Service(served=500), Service(served=50))).word == "good"


@pytest.mark.parametrize(("old", "new"), [(500, 49), (49, 500), (0, 500)])
def test_too_few_requests_of_either_wait(old: int, new: int) -> None:
    verdict = judge(figures(Service(served=old), Service(served=new)))
    assert verdict.word == "wait"
    assert str(new) in verdict.why
    assert "rollout.samples = 50" in verdict.why


def test_without_any_task_of_the_old_version_nothing_is_waited_for() -> None:
    assert judge(figures(Service(), Service(served=50)), alone=True).word == "good"
    assert judge(figures(Service(), Service(served=46, failed=4)), alone=True).word == "bad"


@pytest.mark.parametrize(
    ("new", "words"),
    [(Service(served=47, failed=3), "3 of 50 requests failed"), (Service(served=50, odd=3), "3 of 50 answers")],
)
def test_more_failed_or_senseless_answers_than_the_old_version_are_bad(new: Service, words: str) -> None:
    verdict = judge(figures(Service(served=500), new))
    assert verdict.word == "bad"
    assert words in verdict.why
    assert "rollout.most_errors = 0.02" in verdict.why


@pytest.mark.parametrize("new", [Service(served=48, failed=2), Service(served=50, odd=2)])
def test_what_chance_may_do_is_not_bad(new: Service) -> None:
    assert judge(figures(Service(served=500), new)).word == "good"


def test_errors_that_both_versions_have_are_not_the_new_ones_fault() -> None:
    assert judge(figures(Service(served=400, failed=100), Service(served=80, failed=20))).word == "good"


def test_a_verdict_that_nothing_could_change_does_not_wait() -> None:
    verdict = judge(figures(Service(served=50), Service(served=0, failed=3)))
    assert verdict.word == "bad", "3 of 50 would be too many"


def test_one_death_may_be_chance_and_many_replicas_may_have_more() -> None:
    enough = Service(served=500)
    assert judge(figures(enough, enough, deaths=1)).word == "good"
    assert judge(figures(enough, enough, deaths=2)).word == "bad"
    assert judge(figures(enough, enough, deaths=2), replicas=100).word == "good"
    assert judge(figures(Service(), Service(), deaths=2)).word == "bad", "no requests are needed for that"


@pytest.mark.parametrize("name", ["ttft", "tbt"])
def test_slow_for_long_is_bad_and_a_burst_is_none(name: str) -> None:
    def windows(old: float, new: float) -> tuple[Service, Service]:
        made = [Service(served=500, samples=LEAST_WINDOWS, **{name: seconds}) for seconds in (old, new)]
        return made[0], made[1]

    made = figures(*windows(0.2, 0.4))
    first = judge(made, 10.0)
    assert (first.word, "rollout.slower = 1.5" in first.why) == ("wait", True)
    assert judge(made, 10.0 + SLOW_SECONDS - 1).word == "wait"
    assert judge(made, 10.0 + SLOW_SECONDS).word == "bad"
    for old, new in ((0.2, 0.29), (0.001, 0.004), (0.0, 5.0), (0.4, 0.0)):
        assert judge(figures(*windows(old, new)), 100.0).word == "good", (old, new)


def test_only_the_same_pool_is_compared() -> None:
    made = figures(Service(served=500), Service(served=500))
    fast, slow = Service(500, ttft=0.1, samples=32), Service(500, ttft=1.0, samples=32)
    made.absorb([task("a/0", "", fast), task("b/0", "v2", slow)])
    assert judge(made).word == "wait", "none has requests of both"
    made.absorb([task("b/1", "", slow)])
    assert judge(made).word == "good"


def test_a_few_requests_of_many_replicas_are_enough_to_tell_the_speed() -> None:
    made = figures(Service(served=500, tbt=0.02, samples=LEAST_WINDOWS), Service(served=20))
    made.absorb([task(f"a/{n}", "v2", Service(10, tbt=0.2, samples=3)) for n in range(1, 6)])
    assert judge(made).word == "wait", "15 are none"
    made.absorb([task(f"a/{n}", "v2", Service(10, tbt=0.2, samples=4)) for n in range(1, 6)])
    assert "200 ms between tokens, 20 ms at the old version" in judge(made).why


def test_totals_that_begin_anew_are_new_requests() -> None:
    made = Figures("", "v2")
    made.absorb([task("a/0", "", Service(served=1000, failed=7))])
    assert made.of("").ended == 0, "what was before the rollout"
    made.absorb([task("a/0", "", Service(served=1010, failed=7))])
    made.absorb([task("a/0", "", Service(served=3, failed=1), incarnation=2)])
    made.absorb([task("a/0", "", Service(served=2), incarnation=2)])  # its agent was restarted
    made.absorb([task("a/0", "v2", Service(served=5), incarnation=3)])
    assert (made.of("").served, made.of("").failed, made.of("v2").served) == (15, 1, 5)


rooms = st.integers(0, 50)


@given(rooms, rooms, st.floats(0, 200), st.floats(0.01, 1.0))
def test_shares_are_shares_and_fit_the_room(room: int, other: int, load: float, share: float) -> None:
    careful, keen = cautious(room, other, load, share), eager(room, other, load)
    for found in (careful, keen, proportional(room, other)):
        assert 0.0 <= found <= 1.0
    if room == 0:
        assert careful == 0.0
    if room and other:
        assert careful <= proportional(room, other) <= keen
        if load <= room:
            assert keen == 1.0
        if load <= other:
            assert careful == min(share, proportional(room, other))
        if load <= room + other:  # neither is given more than it has room for
            assert careful * load <= room + 1e-9
            assert (1 - careful) * load <= other + 1e-9
            assert keen * load <= room + 1e-9


phases: st.SearchStrategy[ReplicaPhase] = st.sampled_from(["ready", "loading"])


@given(
    st.lists(st.tuples(st.booleans(), phases), min_size=1, max_size=8),
    st.integers(1, 8),
    st.floats(0, 70),
    st.sets(st.integers(0, 7)),
)
def test_what_is_left_serves_the_load_but_one_may_always_go(
    made: list[tuple[bool, ReplicaPhase]], most: int, load: float, on_the_way: set[int]
) -> None:
    tasks = {
        f"a/{n}": Task(f"a/{n}", "a", "", alive, 1, 8, (ReplicaState(0, 1, phase),))
        for n, (alive, phase) in enumerate(made)
    }
    moving = {f"a/{n}" for n in on_the_way} & set(tasks)
    keys = [key for key in tasks if key not in moving]
    found = may_move(keys, tasks, moving, most, load)
    living = [key for key in found if tasks[key].alive]
    assert len(living) <= max(0, most - len(moving))
    assert {key for key in keys if not tasks[key].alive} <= set(found)
    if not moving and any(tasks[key].alive for key in keys):
        assert living
    taken = sum(tasks[key].room for key in living)
    left = sum(t.room for key, t in tasks.items() if key not in moving) - taken
    if taken and len(moving) + len(living) > 1 and tasks[living[0]].room and moving:
        assert left >= load


def test_a_canary_meets_all_pools() -> None:
    tasks = [task(key, "", Service()) for key in ("a/0", "a/1", "a/2", "b/0", "b/1", "a/10")]
    assert [t.key for t in in_turn(tasks)] == ["a/0", "b/0", "a/1", "b/1", "a/2", "a/10"]
