"""Which levels `exahpc curve` tries, and what it prints of them."""

from __future__ import annotations

import io
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from exahpc.cli import main
from exahpc.cli.curve import _table, powers
from exahpc.lab.curve import Curve
from exahpc.lab.level import Level, Spread


@pytest.mark.parametrize(("sequences", "last"), [(1, 2), (8, 16), (20, 64), (512, 1024), (100_000, 1024)])
def test_levels_double_until_twice_of_what_fits_was_tried(sequences: int, last: int) -> None:
    found = powers(sequences)
    assert (found[0], found[-1]) == (1, last)
    assert all(b == 2 * a for a, b in pairwise(found))


@pytest.mark.parametrize("levels", ["0,1", "2,2", "4,2", "a", "", "1,,2", "-1", "1.5"])
def test_levels_that_do_not_rise_are_refused(levels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXAHPC_HOME", str(tmp_path))
    done = CliRunner().invoke(main, ["curve", "nobody", "--concurrency", levels])
    assert (done.exit_code, "rising whole numbers" in done.output) == (2, True)


def test_the_table_fits_a_terminal_and_marks_the_knee() -> None:
    def one(concurrency: int, refused: int) -> Level:
        times = Spread(9, 12.345, 99.999)
        return Level(concurrency, 20.0, 12345.6, 5, refused, times, Spread(), 1, 0, 100, 3 << 40)

    levels = tuple(one(n, n) for n in (1, 2, 1024))
    found = Curve("d", "m", "2026-01-01T00:00:00+00:00", 1, 4, 1000, 0, 128, 64, levels, knee=2)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(_table(found))
    text = console.export_text()
    lines = text.splitlines()
    assert [("knee" in line, "refused" in line) for line in lines[1:4]] == [
        (False, True),
        (True, False),
        (False, True),
    ]
    assert "12,345" in lines[1]
    assert "…" not in text
