"""Figures of a load, from answers whose times are written by hand."""

from __future__ import annotations

import pytest

from exahpc.lab.bench.figures import BUSY, LATE, Client, is_good, result, spread
from exahpc.lab.bench.lengths import Lengths
from exahpc.lab.bench.seen import SLICES, Answer, Outcome, Seen
from exahpc.lab.bench.wish import Load, Slo, Target, Wish
from exahpc.telemetry.histogram import Histogram

NONE = Histogram().sketch()
WISH = Wish(
    Target("http://x/v1", "m"), Load(rate=1.0), Lengths("fixed", 8), Lengths("fixed", 5), ramp=5.0, seconds=10.0
)


def answer(due: float, *, late: float = 0.0, outcome: Outcome = "ok", tokens: int = 5) -> Answer:
    """First text 0.5 s after it was due, then a piece every 0.1 s."""
    last = due + 0.5 + 0.1 * (tokens - 1)
    return Answer(due, due + late, due + 0.5, last, last + 0.1, tokens, tokens, 8, outcome)


def seen(answers: list[Answer], *, slices: list[int] | None = None, cpu: float = 1.0) -> Seen:
    return Seen(answers, slices or [5] * SLICES, NONE, NONE, cpu, None)


def test_what_came_during_the_ramp_up_does_not_count_and_what_ended_after_it_does() -> None:
    found = result(WISH, [seen([answer(99.0), answer(100.0), answer(109.5), answer(110.0)])], 100.0, "")
    assert (found.requests, found.ok) == (2, 2)
    assert found.requests_per_second == pytest.approx(0.2)  # one of before ended in it, one of it ended after it
    assert found.tokens_per_second == pytest.approx(5.0)


def test_the_drain_is_shown_beside() -> None:
    found = result(WISH, [seen([answer(100.0), answer(109.5)])], 100.0, "").drained
    assert found.seconds == pytest.approx(10.5)
    assert found.requests_per_second == pytest.approx(2 / 10.5)
    assert found.tokens_per_second == pytest.approx(10 / 10.5)


def test_latency_counts_from_when_a_request_was_due_however_late_it_was_sent() -> None:
    found = result(WISH, [seen([answer(101.0, late=0.3)])], 100.0, "")
    assert found.ttft.p50 == pytest.approx(0.5)
    assert found.client.unsent == pytest.approx(0.3)
    assert any("after it was due" in doubt for doubt in found.client.doubts)


def test_processes_add_up() -> None:
    found = result(WISH, [seen([answer(101.0)]), seen([answer(102.0), answer(103.0)])], 100.0, "")
    assert (found.requests, found.client.processes) == (3, 2)
    assert found.tokens_per_second == pytest.approx(10.0)


def test_pieces_are_counted_as_the_tokens_that_usage_tells() -> None:
    two_each = Answer(101.0, 101.0, 101.5, 102.0, 102.0, 3, 6, 8, "ok")
    found = result(WISH, [seen([two_each], slices=[3] * SLICES)], 100.0, "")
    assert found.tokens_per_second == pytest.approx(6.0)
    assert found.tbt.p50 == pytest.approx(0.1)


def test_only_answers_within_every_part_of_the_slo_are_goodput() -> None:
    one = answer(101.0)
    for slo in (Slo(ttft=0.4), Slo(tbt=0.09), Slo(e2e=0.9)):
        assert not is_good(one, slo)
    assert is_good(one, Slo(0.51, 0.11, 1.1))
    assert not is_good(answer(101.0, outcome="failed"), Slo())
    wish = Wish(WISH.target, WISH.load, WISH.prompt, WISH.new, seconds=10.0, slo=Slo(e2e=1.1))
    found = result(wish, [seen([answer(101.0), answer(102.0, tokens=50)])], 100.0, "")
    assert (found.goodput, found.good) == (pytest.approx(0.1), pytest.approx(0.5))
    assert result(WISH, [seen([answer(101.0)])], 100.0, "").goodput is None


def test_what_was_refused_or_never_ended_is_told_and_gives_no_latency() -> None:
    answers = [answer(101.0, outcome="refused"), answer(102.0, outcome="open"), answer(103.0)]
    found = result(WISH, [seen(answers)], 100.0, "")
    assert (found.refused, found.open, found.ok, found.e2e.count) == (1, 1, 1, 1)


def test_the_ceiling_of_the_client_is_what_it_did_divided_by_how_busy_it_was() -> None:
    found = result(WISH, [seen([answer(101.0), answer(102.0)], cpu=5.0)], 100.0, "").client
    assert found.busy == pytest.approx(0.5)
    assert found.most_requests == pytest.approx(0.4)
    assert not found.doubts


def test_a_client_that_was_busy_or_late_says_so() -> None:
    calm = Client(1, BUSY, LATE, LATE, 1.0, 1.0)
    assert not calm.doubts
    assert "busy" in Client(1, BUSY + 0.01, 0.0, 0.0, 1.0, 1.0).doubts[0]
    assert "late" in Client(1, 0.0, LATE + 0.001, 0.0, 1.0, 1.0).doubts[0]


def test_an_even_stream_of_tokens_has_no_error_and_an_uneven_one_has() -> None:
    assert result(WISH, [seen([answer(101.0)])], 100.0, "").error == pytest.approx(0.0)
    uneven = [0, 10] * (SLICES // 2)
    assert result(WISH, [seen([answer(101.0)], slices=uneven)], 100.0, "").error == pytest.approx(1.667, rel=0.01)


def test_percentiles_are_nearest_rank() -> None:
    found = spread([4.0, 1.0, 2.0, 3.0])
    assert (found.mean, found.p50, found.p99, found.max) == (2.5, 2.0, 4.0, 4.0)
