from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exahpc.errors import DeploymentError
from exahpc.lab.bench.lengths import Lengths, parsed
from exahpc.lab.bench.wish import Load, Slo, slo

share = st.floats(0, 1, exclude_min=True, exclude_max=True)
texts = st.one_of(
    st.integers(1, 10_000).map(str),
    st.tuples(st.integers(1, 500), st.integers(0, 500)).map(lambda p: f"uniform:{p[0]}-{p[0] + p[1]}"),
    st.tuples(st.integers(1, 5000), st.sampled_from([0.1, 0.5, 1.5])).map(lambda p: f"lognormal:{p[0]},{p[1]}"),
    st.integers(1, 5000).map(lambda mean: f"exponential:{mean}"),
)


@given(texts)
def test_a_distribution_is_told_as_it_is_written(text: str) -> None:
    assert str(parsed(text)) == text


@given(texts, share, share)
def test_lengths_are_at_least_one_and_rise_with_their_share(text: str, a: float, b: float) -> None:
    found = parsed(text)
    low, high = sorted((a, b))
    assert 1 <= found.at(low) <= found.at(high)


def test_every_whole_number_of_a_uniform_range_is_equally_likely() -> None:
    found = parsed("uniform:3-6")
    assert [found.at((n + 0.5) / 8) for n in range(8)] == [3, 3, 4, 4, 5, 5, 6, 6]


def test_a_lognormal_has_its_median_and_an_exponential_its_mean() -> None:
    assert parsed("lognormal:200,0.7").at(0.5) == 200
    typical = parsed("exponential:1000").typical(2000)
    assert sum(typical) / len(typical) == pytest.approx(1000, rel=0.01)


def test_lengths_are_cut_to_what_a_model_takes_unless_most_would_be() -> None:
    assert parsed("lognormal:200,0.7").limited(250).at(0.999) == 250
    with pytest.raises(DeploymentError, match="half of them are above 100"):
        parsed("lognormal:200,0.7").limited(100)


@pytest.mark.parametrize(
    "text", ["", "x", "0", "-5", "uniform:9-3", "uniform:3", "normal:3,4", "lognormal:5", "1e9"]
)
def test_a_length_that_cannot_be_read_names_the_forms(text: str) -> None:
    with pytest.raises(DeploymentError, match="uniform:64-256"):
        parsed(text)


def test_one_length_is_typical_of_a_fixed_one() -> None:
    assert Lengths("fixed", 64).typical(5) == [64]


def test_an_slo_takes_milliseconds_and_seconds() -> None:
    assert slo("ttft=500ms, tbt=.05,e2e=30s") == Slo(0.5, 0.05, 30.0)
    assert bool(slo("e2e=1s"))
    assert not Slo()


@pytest.mark.parametrize("text", ["ttft", "ttft=", "ttft=5m", "first=1s", "ttft=1s,ttft=2s", "e2e=-1"])
def test_an_slo_that_cannot_be_read_shows_one_that_can(text: str) -> None:
    with pytest.raises(DeploymentError, match="ttft=500ms,tbt=50ms"):
        slo(text)


def test_a_load_of_several_nodes_is_so_many_times_that_of_one() -> None:
    assert Load(rate=2.5).times(4).rate == 10
    assert Load(concurrency=3).times(4).concurrency == 12
