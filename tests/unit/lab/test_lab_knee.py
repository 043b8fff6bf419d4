"""Where more concurrency stops to pay."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exahpc.lab.knee import knee

LADDER = [1, 2, 4, 8, 16, 32]


def saturating(full: int) -> list[float]:
    """Grows in proportion up to `full`, and then no more."""
    return [10.0 * min(n, full) for n in LADDER]


@pytest.mark.parametrize("full", [2, 4, 8, 16])
def test_the_knee_is_where_proportional_growth_ends(full: int) -> None:
    assert knee(LADDER, saturating(full)) == LADDER.index(full)


def test_a_curve_that_still_grows_in_proportion_has_no_knee() -> None:
    assert knee(LADDER, saturating(32)) is None
    assert knee(LADDER, [10 * n + (-1) ** n * 0.3 * n for n in LADDER]) is None


def test_a_curve_that_never_grows_has_its_knee_at_the_first_point() -> None:
    assert knee(LADDER, [50, 51, 50.5, 50, 49, 50]) == 0


def test_throughput_that_falls_after_its_peak_has_the_knee_before() -> None:
    assert knee(LADDER, [10, 20, 40, 78, 80, 60]) == 3


def test_the_example_of_the_paper() -> None:
    """Satopaa et al., figure 2: ten points of -1 / (x + 0.1) + 5 on 0..1 bend at 0.22."""
    x = [i / 9 for i in range(10)]
    found = knee(x, [-1 / (v + 0.1) + 5 for v in x])
    assert found is not None
    assert x[found] == pytest.approx(0.22, abs=0.005)


def test_two_points_bend_nowhere() -> None:
    assert knee([1, 2], [10, 11]) is None
    assert knee([], []) is None


def test_points_must_come_in_order() -> None:
    with pytest.raises(ValueError, match="must rise"):
        knee([1, 1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="must rise"):
        knee([1, 2], [1])


@given(st.lists(st.floats(0.1, 1e4), min_size=3, max_size=12), st.floats(0.01, 100), st.floats(0.1, 10))
def test_units_do_not_matter(y: list[float], up: float, right: float) -> None:
    x = [float(i) for i in range(1, len(y) + 1)]
    found, scaled = knee(x, y), knee([right * v for v in x], [up * v for v in y])
    if found != scaled:  # two points equally far, but for rounding
        assert abs(_above(x, y, found) - _above(x, y, scaled)) < 1e-6


def _above(x: list[float], y: list[float], index: int | None) -> float:
    if index is None:
        return 0.1
    return (y[index] - min(y)) / (max(y) - min(y)) - (x[index] - x[0]) / (x[-1] - x[0])
