"""The virtual clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from exahpc.lab.simulate.timeline import Timeline

_TIMES = st.lists(st.floats(0.0, 0.02) | st.sampled_from([0.0, 0.001, 0.002, 0.0025]), max_size=40)


@given(_TIMES, st.lists(st.floats(0.0, 0.03), max_size=4))
def test_events_happen_in_order_of_time_and_of_equals_as_they_were_planned(
    times: list[float], stops: list[float]
) -> None:
    timeline, seen = Timeline(), list[tuple[float, int]]()
    for number, when in enumerate(times):
        timeline.at(when, lambda when=when, number=number: seen.append((when, number)))
    planned = sorted((when, number) for number, when in enumerate(times))
    for stop in [*sorted(stops), 1.0]:
        timeline.run(stop)
        assert seen == [event for event in planned if event[0] <= stop]
        assert timeline.now == stop


@given(_TIMES, st.floats(0.0, 0.01))
def test_what_an_event_plans_happens_in_its_turn_also_for_the_past(times: list[float], ahead: float) -> None:
    timeline, seen = Timeline(), list[float]()

    def event() -> None:
        timeline.after(ahead, lambda: seen.append(timeline.now))
        timeline.at(timeline.now - 1.0, lambda now=timeline.now: seen.append(now))

    for when in times:
        timeline.at(when, event)
    timeline.run(1.0)
    assert len(seen) == 2 * len(times)
    assert seen == sorted(seen)
