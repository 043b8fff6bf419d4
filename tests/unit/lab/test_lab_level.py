"""What clients saw becomes one point of the curve."""

from __future__ import annotations

import pytest

from exahpc.lab.level import Sample, Stream, level, quantile, spread


def test_percentiles_are_nearest_rank() -> None:
    assert spread([]) == spread(iter(()))
    assert spread([]).count == 0
    hundred = spread(range(100, 0, -1))
    assert (hundred.count, hundred.p50, hundred.p99) == (100, 50, 99)
    assert spread([7.0]).p99 == 7.0
    assert quantile([1.0, 2.0], 0.5) == 1.0


def test_only_the_measured_time_counts() -> None:
    streams = [Stream(0.0, (0.5, 1.5, 2.5), 3), Stream(1.0, (1.25, 1.75, 9.0), 3)]
    found = level(2, streams, [], 0, begin=1.0, end=2.0)
    assert found.tokens_per_second == 3.0  # at 1.25, 1.5 and 1.75
    assert (found.first_token.count, found.first_token.p50) == (1, 0.25)  # the other first token came before
    assert (found.between.count, found.between.p99) == (1, 0.5)
    assert found.requests == 0


def test_pieces_count_as_the_tokens_that_they_hold() -> None:
    whole = Stream(0.0, (0.1, 0.2), tokens=6)  # three tokens in each piece
    cut_off = Stream(0.0, (0.3, 0.4))
    found = level(1, [whole, cut_off], [], 0, begin=0.0, end=1.0)
    assert found.tokens_per_second == pytest.approx(12)
    assert found.requests == 1


def test_nothing_seen_is_no_number_made_up() -> None:
    found = level(4, [Stream(0.0, ())], [], 7, begin=1.0, end=3.0)
    assert (found.tokens_per_second, found.first_token.count, found.kv_tokens, found.memory) == (
        0.0,
        0,
        None,
        None,
    )
    assert (found.concurrency, found.seconds, found.refused) == (4, 2.0, 7)


def test_the_deployments_own_figures_are_the_most_that_was_seen_meanwhile() -> None:
    looks = [
        Sample(0.5, 9, 9, 999, 999),
        Sample(1.0, 1, 0, 30),
        Sample(1.5, 2, 1, 20, 5),
        Sample(2.0, 9, 9, 999, 999),
    ]
    found = level(1, [], looks, 0, begin=1.0, end=2.0)
    assert (found.running, found.waiting, found.kv_tokens, found.memory) == (2, 1, 30, 5)
