"""A curve as files that others read."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

from exahpc.errors import ExahpcError
from exahpc.lab.curve import Curve
from exahpc.lab.level import Level, Spread
from exahpc.lab.report import make, plot, write


def one(concurrency: int, rate: float, kv: int | None, memory: int | None) -> Level:
    return Level(
        concurrency, 10.0, rate, 5, 0, Spread(5, 0.1, 0.2), Spread(50, 0.01, 0.02), concurrency, 0, kv, memory
    )


@pytest.fixture
def curve() -> Curve:
    levels = (one(1, 20.0, 200, 300 << 20), one(2, 40.0, None, None), one(4, 41.0, 800, 310 << 20))
    return Curve("d", "tiny", "2026-01-01T00:00:00+00:00", 1, 4, 1000, 512, 128, 64, levels, knee=2)


def test_the_table_has_a_line_for_each_level_and_marks_the_knee(curve: Curve, tmp_path: Path) -> None:
    data, table = write(curve, tmp_path / "out")
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [(r["concurrency"], r["tokens_per_s"], r["knee"]) for r in rows] == [
        ("1", "20.0", "False"),
        ("2", "40.0", "True"),
        ("4", "41.0", "False"),
    ]
    assert [(r["kv_share"], r["memory_mib"]) for r in rows] == [("0.2", "300.0"), ("", ""), ("0.8", "310.0")]
    assert (rows[0]["first_token_p99_ms"], rows[0]["between_p50_ms"]) == ("200.0", "10.0")
    told = json.loads(data.read_text())
    assert (told["knee"], [level["concurrency"] for level in told["levels"]]) == (2, [1, 2, 4])


def test_the_picture_is_made_in_each_format(curve: Curve, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    png, svg = tmp_path / "curve.png", tmp_path / "curve.svg"
    plot(curve, [png, svg])
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in svg.read_text()


def test_without_matplotlib_the_error_says_what_to_install(
    curve: Curve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ExahpcError, match=r"pip install 'exahpc\[plot\]'"):
        plot(curve, [tmp_path / "curve.png"])


def test_a_folder_that_cannot_be_written_is_told_before_measuring(tmp_path: Path) -> None:
    make(tmp_path / "a" / "b")
    make(tmp_path / "a" / "b")
    assert not list((tmp_path / "a" / "b").iterdir())
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "x", Path("/proc/x")):
        with pytest.raises(ExahpcError, match="name another folder"):
            make(folder)
