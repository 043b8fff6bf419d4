"""Latencies of emulated replicas come from a measured curve."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from exahpc.errors import ExahpcError
from exahpc.lab.curve import Curve
from exahpc.lab.emulated.calibrate import Point, calibrated, fitted
from exahpc.lab.level import Level, Spread


def level(concurrency: int, first: float, between: float) -> Level:
    return Level(concurrency, 10, 1, 1, 0, Spread(9, first, first), Spread(9, between, between), 1, 0, None, None)


def saved(path: Path, *levels: Level) -> Path:
    curve = Curve("d", "tiny", "2026-01-01T00:00:00+00:00", 2, 8, 1000, 512, 64, 64, levels, knee=None)
    path.write_bytes(msgspec.json.encode(curve))
    return path


def test_levels_that_queued_do_not_count(tmp_path: Path) -> None:
    path = saved(tmp_path / "curve.json", level(2, 0.05, 0.021), level(8, 0.06, 0.024), level(16, 3.0, 0.9))
    found = calibrated(path)
    assert found.step(1) == pytest.approx(0.021)
    assert found.step(4) == pytest.approx(0.024)


def test_a_file_that_is_no_curve_is_named(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text("{}")
    with pytest.raises(ExahpcError, match=r"other\.json is not a curve"):
        calibrated(path)
    with pytest.raises(ExahpcError, match="tells no latencies"):
        calibrated(saved(path, level(16, 0.1, 0.1)))


def test_a_fit_gives_back_the_line_that_was_measured() -> None:
    points = [Point(n, 0.1 + 0.01 * n, 0.02 + 0.0003 * n) for n in (1, 4, 16, 64)]
    found = fitted(points, 100)
    assert (found.base_seconds, found.each_seconds) == pytest.approx((0.02, 0.0003))
    assert found.alone(100, 2)[0] == pytest.approx(0.11)


@pytest.mark.parametrize("points", [[], [Point(1, 0.0, 0.01)]])
def test_a_fit_of_nothing_is_refused(points: list[Point]) -> None:
    with pytest.raises(ValueError, match="no level"):
        fitted(points, 100)
