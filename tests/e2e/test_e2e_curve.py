"""`exahpc curve` at a living deployment: data, picture, and figures that agree with each other."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.live import Live

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]


def test_one_command_measures_levels_and_writes_the_curve(local: Live, tmp_path: Path) -> None:
    shape = ("--prompt", "16", "--new", "8", "--seconds", "2", "--warm", "0.5")
    done = local.run("curve", "local", "--concurrency", "1,2,8", *shape, "-o", str(tmp_path))
    assert [Path(line).name for line in done.stdout.splitlines() if line.startswith(str(tmp_path))] == [
        "curve.json", "curve.csv", "curve.png", "curve.svg",
    ]  # fmt: skip
    told = json.loads((tmp_path / "curve.json").read_text())
    assert (told["replicas"], told["sequences"]) == (3, 20)
    for level in told["levels"]:
        assert level["tokens_per_second"] > 0
        assert level["requests"] > 0
        assert level["refused"] == 0
        assert 0 < level["first_token"]["p50"] <= level["first_token"]["p99"]
        assert 0 < level["between"]["p50"] <= level["between"]["p99"]
        assert 0 <= level["kv_tokens"] <= told["kv_capacity"]
        assert level["memory"] > 3 * 2**20
    rows = list(csv.DictReader((tmp_path / "curve.csv").read_text().splitlines()))
    assert [row["concurrency"] for row in rows] == ["1", "2", "8"]
    assert (tmp_path / "curve.png").stat().st_size > 10_000
    assert "at once" in done.stdout


def test_a_load_that_cannot_fit_is_refused_before_it_starts(local: Live) -> None:
    done = local.run("curve", "local", "--prompt", "2000", "--new", "64", check=False)
    assert (done.returncode, "more than the context of 2048" in done.stderr) == (2, True)
    done = local.run("curve", "local", "--concurrency", "4,2", check=False)
    assert (done.returncode, "rising whole numbers" in done.stderr) == (2, True)
