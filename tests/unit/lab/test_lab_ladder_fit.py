"""The law behind throughput over nodes is found again in what it gives."""

from __future__ import annotations

import random
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exahpc.lab.ladder.fit import BEND, efficiency, fit

NODES = [1, 2, 4, 8, 16, 32]


def law(m: float, a: float, b: float, c: float) -> float:
    return m / (a + b * (m - 1) + c * m * (m - 1))


def measured(a: float, b: float, c: float, nodes: list[int] = NODES, noise: float = 0.0, seed: int = 1):  # type: ignore[no-untyped-def]
    dice = random.Random(seed)
    x = [law(n / nodes[0], a, b, c) * (1 + noise * dice.gauss(0, 1)) for n in nodes]
    return nodes, x, [max(noise, 1e-4) * one for one in x]


@given(st.floats(1e-4, 10), st.floats(0.01, 0.3), st.sampled_from([0.0, 0.002, 0.02]), st.sampled_from([1, 3, 8]))
def test_without_noise_the_terms_come_back(a: float, b: float, c: float, first: int) -> None:
    found = fit(*measured(a, b * a, c * a, [first * n for n in NODES]))
    assert found is not None
    assert found.terms == pytest.approx((a, b * a, c * a), rel=0.02, abs=1e-9 * a)


def test_what_grows_in_proportion_does_not_bend_and_goes_on_so() -> None:
    found = fit(*measured(0.01, 0, 0, noise=0.01))
    assert found is not None
    assert (found.bend, found.peak, found.terms[1:]) == (None, None, (0.0, 0.0))
    assert found.at(64).value == pytest.approx(6400, rel=0.03)


def test_it_bends_where_the_law_has_lost_a_tenth() -> None:
    a, b, c = 1.0, 0.02, 0.001
    found = fit(*measured(a, b, c))
    assert found is not None
    assert found.bend is not None
    assert law(found.bend.value, a, b, c) / found.bend.value == pytest.approx(BEND, rel=1e-3)
    assert found.peak == pytest.approx(((a - b) / c) ** 0.5, rel=1e-2)
    assert law(found.peak * 1.1, a, b, c) < law(found.peak, a, b, c) > law(found.peak / 1.1, a, b, c)


def test_error_bars_are_as_wide_as_the_scatter_of_repeated_measurements() -> None:
    fits = [fit(*measured(1.0, 0.05, 0.0, noise=0.01, seed=seed)) for seed in range(200)]
    ahead = [one.at(64) for one in fits if one is not None and one.terms[1] > 0 and one.terms[2] == 0]
    assert len(ahead) > 150
    scatter = stdev(one.value for one in ahead)
    assert fmean(one.error for one in ahead) == pytest.approx(scatter, rel=0.35)
    bends = [one.bend for one in fits if one is not None and one.bend is not None and one.terms[2] == 0]
    assert fmean(one.error for one in bends) == pytest.approx(stdev(one.value for one in bends), rel=0.35)


def test_extrapolation_is_less_sure_the_farther_it_goes() -> None:
    found = fit(*measured(1.0, 0.05, 0.001, noise=0.01))
    assert found is not None
    shares = [found.at(n).error / found.at(n).value for n in (32, 64, 128, 256)]
    assert shares == sorted(shares)
    assert shares[0] < shares[-1]


def test_noise_alone_is_no_bend() -> None:
    bends = [fit(*measured(1.0, 0.0, 0.0, noise=0.02, seed=seed)) for seed in range(100)]
    assert sum(one is not None and one.bend is not None for one in bends) < 10


def test_measurements_that_scatter_more_than_they_say_widen_the_error_bars() -> None:
    nodes, x, _ = measured(1.0, 0.0, 0.0, noise=0.05)
    calm = fit(nodes, x, [0.05 * one for one in x])
    bold = fit(nodes, x, [0.01 * one for one in x])
    assert calm is not None
    assert bold is not None
    assert bold.at(32).error > 0.4 * calm.at(32).error


@pytest.mark.parametrize("count", [2, 3])
def test_few_steps_are_enough(count: int) -> None:
    found = fit(*measured(1.0, 0.2, 0.0, NODES[:count]))
    assert found is not None
    assert found.at(NODES[count - 1]).value == pytest.approx(law(NODES[count - 1], 1.0, 0.2, 0.0), rel=0.01)


def test_one_step_is_no_curve() -> None:
    assert fit([4], [10.0], [1.0]) is None


def test_growth_beyond_proportion_is_taken_as_proportion() -> None:
    found = fit([1, 2, 4], [100.0, 230.0, 500.0], [1.0, 1.0, 1.0])
    assert found is not None
    assert found.bend is None


@pytest.mark.parametrize(
    ("nodes", "x", "errors"),
    [([2, 1], [1.0, 1.0], [0.1, 0.1]), ([1, 2], [1.0, 0.0], [0.1, 0.1]), ([1, 2], [1.0], [0.1])],
)
def test_what_is_no_curve_is_refused(nodes: list[int], x: list[float], errors: list[float]) -> None:
    with pytest.raises(ValueError, match="must"):
        fit(nodes, x, errors)


def test_efficiency_is_against_the_first_step_and_has_its_error_too() -> None:
    found = efficiency([2, 4], [10.0, 18.0], [1.0, 0.0])
    assert (found[0].value, found[0].error) == (1.0, 0.0)
    assert found[1].value == pytest.approx(0.9)
    assert found[1].error == pytest.approx(0.09)
