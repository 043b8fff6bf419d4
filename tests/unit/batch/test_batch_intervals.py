"""Intervals behave like a set of numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from exahpc.batch.intervals import Intervals, count, ranges_of

span = st.tuples(st.integers(0, 40), st.integers(0, 40))


@given(st.lists(st.tuples(st.sampled_from(["add", "remove", "common"]), span), max_size=30))
def test_intervals_are_a_set_of_numbers(steps: list[tuple[str, tuple[int, int]]]) -> None:
    intervals, model = Intervals(), set[int]()
    for action, (first, last) in steps:
        numbers = set(range(first, last))
        if action == "add":
            intervals.add(first, last)
            model |= numbers
        elif action == "remove":
            removed = intervals.remove(first, last)
            assert {n for a, b in removed for n in range(a, b)} == model & numbers
            assert count(removed) == len(model & numbers)
            model -= numbers
        else:
            found = intervals.common([(first, last)] if first < last else [])
            assert {n for a, b in found for n in range(a, b)} == model & numbers
        assert list(intervals) == ranges_of(model)
        assert len(intervals) == len(model)
        assert all((n in intervals) == (n in model) for n in range(41))
        first_range = intervals.first(3)
        assert (first_range is None) == (not model)
        if first_range:
            assert first_range[0] == min(model)
            assert set(range(*first_range)) <= model
