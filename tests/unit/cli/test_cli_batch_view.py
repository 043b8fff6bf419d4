"""What a user sees of a running batch, and how it ended: the same counts everywhere."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from exahpc.batch.pace import Lines, Pace
from exahpc.batch.tally import Summary
from exahpc.cli import exits
from exahpc.cli.batch_view import BatchView, ending, line, span
from exahpc.wire.messages import BatchStatus


def status(ok: int, failed: int = 0, total: int = 100, tokens: int = 0, state: str = "running") -> BatchStatus:
    errors = [("too\nlong", failed)] if failed else []
    return BatchStatus("b", "f", total, ok, failed, 1, state, completion_tokens=tokens, errors=errors)


@pytest.mark.parametrize(
    ("ok", "failed", "code"),
    [(3, 0, 0), (2, 1, 3), (0, 3, 4), (0, 0, 0)],
)
def test_the_exit_code_follows_from_the_counts_and_the_results_file_says_the_same(
    ok: int, failed: int, code: int
) -> None:
    assert exits.of_counts(ok, failed) == code
    assert Summary(ok + failed, ok, failed, None, Path("x")).exit_code == code


def test_every_exit_code_is_told_once_in_the_help_and_in_the_how_to() -> None:
    assert sorted(exits.MEANINGS) == [0, 1, 2, 3, 4, 5, 6, 130, 143]
    howto = (Path(__file__).parents[3] / "docs" / "howto" / "batch.md").read_text()
    rows = [f"| {code} | {meaning} |" for code, meaning in exits.MEANINGS.items()]
    assert "\n".join(rows) in howto
    assert all(f"{code:>5}  {meaning}" in exits.EPILOG for code, meaning in exits.MEANINGS.items())


def test_speed_and_the_time_that_is_left_are_of_the_last_minute() -> None:
    pace = Pace()
    assert (pace.rows, pace.tokens, pace.left(5)) == (0, 0, None)
    for second in range(200):
        pace.add(second, 10 * second if second < 100 else 1000 + 2 * (second - 100), 50 * second)
    assert pace.rows == pytest.approx(2)
    assert pace.tokens == pytest.approx(50)
    assert pace.left(30) == pytest.approx(15)


def test_another_broker_that_counts_tokens_anew_does_not_make_speed_negative() -> None:
    pace = Pace()
    pace.add(0, 0, 0)
    pace.add(10, 100, 1000)
    pace.add(11, 100, 0)
    pace.add(12, 101, 10)
    assert (pace.rows, pace.tokens) == (1, 10)


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 1000), st.integers(0, 1000))))
def test_speed_is_never_negative(steps: list[tuple[float, int, int]]) -> None:
    pace, now = Pace(), 0.0
    for seconds, rows, tokens in steps:
        now += seconds
        pace.add(now, rows, tokens)
        assert pace.rows >= 0
        assert pace.tokens >= 0


def test_lines_come_after_ten_seconds_then_ever_more_rarely_and_every_minute_at_last() -> None:
    lines = Lines(0)
    due = [second for second in range(600) if lines.due(second)]
    gaps = [after - before for before, after in itertools.pairwise(due)]
    assert due[0] == 10
    assert gaps == sorted(gaps)
    assert gaps[-1] == 60


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(5.4, "5 s"), (119, "119 s"), (150, "2 min"), (3600, "1 h 0 min"), (9000, "2 h 30 min"), (90_000, "1 d 1 h")],
)
def test_times_are_told_in_their_largest_units(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_a_file_gets_plain_lines_with_everything_on_them() -> None:
    now, written = 0.0, io.StringIO()
    waiting = "waiting for the head"
    with BatchView(Console(file=written, highlight=False), lambda: waiting, lambda: now) as view:
        for second in range(26):
            now = float(second)
            view.report(None if second < 12 else status(2 * second, 1, tokens=4 * second))
            if second == 12:
                waiting = ""
    first, second_line = written.getvalue().splitlines()
    assert first == "waiting for the head"
    assert second_line == (
        "51/100 rows (51.0 %), 2.0 rows/s, 4 tokens/s, 24 s left, 1 failed, commonest error (1 row): too long"
    ), "no line is broken"


def test_a_batch_that_does_not_move_shows_no_speed() -> None:
    assert line(status(0), Pace(), "") == "0/100 rows (0.0 %)"


def test_the_end_tells_all_counts_and_node_hours() -> None:
    summary = Summary(10, 7, 3, "2 times: no", Path("out.h5"), 1, 0.25)
    assert list(ending(summary)) == [
        "7 of 10 rows answered, 3 failed (1 of them bad in the input)",
        "commonest error: 2 times: no",
        "0.25 node-hours were used",
    ]
