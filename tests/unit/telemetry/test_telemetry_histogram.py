"""Laws of mergeable histograms."""

from __future__ import annotations

import math
import random

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from exahpc.telemetry.histogram import ERROR, LAST, Histogram, bucket, edge
from exahpc.wire.messages import Sketch

VALUES = st.lists(st.integers(1, 2**40), min_size=1, max_size=200)


def of(values: list[int]) -> Histogram:
    found = Histogram()
    for value in values:
        found.add(value)
    return found


@given(VALUES, st.floats(0, 1))
def test_a_quantile_is_off_by_the_stated_bound_at_most(values: list[int], share: float) -> None:
    exact = sorted(values)[max(1, math.ceil(share * len(values))) - 1]
    found = of(values).quantile(share)
    assert found is not None
    assert exact / (1 + ERROR) * (1 - 1e-12) <= found <= exact * (1 + ERROR) * (1 + 1e-12)


@given(st.lists(VALUES, min_size=1, max_size=6), st.randoms())
def test_merging_parts_in_any_order_is_observing_everything(parts: list[list[int]], dice: random.Random) -> None:
    whole = of([value for part in parts for value in part]).sketch()
    shuffled = list(parts)
    dice.shuffle(shuffled)
    merged = Histogram()
    for part in shuffled:
        merged.merge(of(part).sketch())
    assert merged.sketch() == whole


@given(VALUES)
def test_a_sketch_survives_the_wire(values: list[int]) -> None:
    sketch = of(values).sketch()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sketch), type=Sketch) == sketch
    assert Histogram.of(sketch).sketch() == sketch


@given(st.integers(2, 2**41))
def test_a_value_lies_in_its_bucket(value: int) -> None:
    index = bucket(value)
    assert edge(index - 1) * (1 - 1e-12) < value
    assert index == LAST or value <= edge(index) * (1 + 1e-12)


@given(VALUES, st.integers(0, 40))
def test_octaves_count_exactly(values: list[int], power: int) -> None:
    (found,) = of(values).octaves(power, power)
    assert found == (2.0**power, sum(value <= 2**power for value in values))


def test_what_is_out_of_range_lands_at_the_ends() -> None:
    found = of([-5, 0, 2**60])
    assert found.counts == {0: 2, LAST: 1}
    strange = Histogram.of(Sketch({-3: 1, 10_000: 2}, 0))
    assert strange.counts == {0: 1, LAST: 2}


def test_no_observations_have_no_quantile() -> None:
    assert Histogram().quantile(0.5) is None


@given(st.floats(-1.0, 1e7) | st.sampled_from([2**40 / 1e6, 2e-6, 1e-6, 0.0]), st.integers(1, 9))
def test_a_time_counts_as_its_microseconds(seconds: float, times: int) -> None:
    timed, plain = Histogram(), Histogram()
    timed.seconds(seconds, times)
    plain.add(int(seconds * 1e6), times)
    assert timed.sketch() == plain.sketch()
