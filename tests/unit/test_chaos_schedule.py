"""When the chaos test strikes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.cluster.chaos import APART, DOMAINS, Domain, Schedule

_steps = st.lists(st.floats(0.1, 90.0), min_size=1, max_size=60)


@given(st.integers(0, 1000), _steps)
def test_strikes_in_one_domain_are_thirty_seconds_apart(seed: int, steps: list[float]) -> None:
    schedule, now = Schedule(seed), 0.0
    last: dict[Domain, float] = {}
    for number, step in enumerate(steps):
        now += step
        for domain in schedule.due((number + 1) / len(steps), now):
            assert domain not in last or now - last[domain] >= APART
            last[domain] = now
            schedule.was_struck(domain, now)
    assert set(last) == set(DOMAINS), "each is struck before the work is done"


def test_the_work_has_an_end_however_slow_the_machine_is() -> None:
    schedule, strikes = Schedule(0), 0
    for second in range(100_000):
        for domain in schedule.due(0.5, float(second)):
            schedule.was_struck(domain, float(second))
            strikes += 1
    assert strikes < 30


def test_what_could_not_be_struck_stays_due() -> None:
    schedule = Schedule(0)
    assert schedule.due(0.0, 0.0) == []
    assert set(schedule.due(1.0, 0.0)) == set(schedule.due(1.0, 1.0)) == set(DOMAINS)


def test_a_seed_says_it_all() -> None:
    def story(seed: int) -> list[object]:
        schedule, found = Schedule(seed), list[object]()
        for second in range(300):
            for domain in schedule.due(second / 300, float(second)):
                schedule.was_struck(domain, float(second))
                found.append((second, domain, schedule.one_of(range(1000))))
        return found

    assert story(3) == story(3) != story(4)
