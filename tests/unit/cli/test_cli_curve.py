"""Which levels `exahpc curve` tries, and what it prints of them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from exahpc.cli import main
from exahpc.cli.curve import _table, powers
from exahpc.deployment.spec import Deployment, Model, Pool
from exahpc.errors import LinkError
from exahpc.lab.curve import Curve, Measure
from exahpc.lab.level import Level, Spread
from exahpc.wire.folder import Folder


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


def test_more_at_once_than_one_client_can_measure_is_refused_with_the_limit(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        main, ["curve", "nobody", "--concurrency", "1,1025"], env={"EXAHPC_HOME": str(tmp_path)}
    )
    assert done.exit_code == 2
    assert "1025 requests at once" in done.output
    assert "levels up to 1024" in " ".join(done.output.split())


def one(concurrency: int, refused: int = 0) -> Level:
    times = Spread(9, 12.345, 99.999)
    return Level(concurrency, 20.0, 12345.6, 5, refused, times, Spread(), 1, 0, 100, 3 << 40)


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, ending: BaseException, *more: str, after: int) -> Result:
    """`exahpc curve` on a deployment whose measurement ends so after some levels."""

    class Measured(Measure):
        def __init__(self, *_: object) -> None:
            self.notes, self.sequences, self.replicas, self.kv_capacity = [], 4, 1, 1000
            self._folder, self._deployment = Folder(folder / "d"), deployment

        def levels(self, concurrencies: Sequence[int], *_: object, **__: object) -> Iterator[Level]:
            yield from map(one, concurrencies[:after])
            raise ending

        def _kv_bytes(self) -> int:
            return 0

    deployment = Deployment("d", model=Model(path="/m"), pool=(Pool("a"),))
    for name, value in {
        "opened": lambda name: (Folder(folder / name), deployment),
        "live_endpoint": lambda _: None,
        "first_key": lambda _: "k",
        "Measure": Measured,
    }.items():
        monkeypatch.setattr(f"exahpc.cli.curve.{name}", value)
    return CliRunner().invoke(main, ["curve", "d", "-o", str(folder / "out"), *more])


@pytest.mark.parametrize(("ending", "code"), [(KeyboardInterrupt(), 130), (LinkError("it broke off"), 1)])
def test_an_interruption_keeps_the_levels_that_were_measured(
    ending: BaseException, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run(tmp_path, monkeypatch, ending, after=2)
    assert done.exit_code == code, done.output
    assert "2 of 4 levels" in done.output
    assert str(ending) in done.output
    found = json.loads((tmp_path / "out" / "curve.json").read_bytes())
    assert [level["concurrency"] for level in found["levels"]] == [1, 2]
    assert "interrupted" in found["notes"][0]


def test_an_interruption_before_the_first_level_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(tmp_path, monkeypatch, KeyboardInterrupt(), after=0).exit_code == 130
    assert not list((tmp_path / "out").iterdir())


def test_with_json_the_figures_are_all_of_standard_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(tmp_path, monkeypatch, LinkError("it broke off"), "--json", after=2)
    assert done.exit_code == 1, done.output
    assert json.loads(done.stdout) == json.loads((tmp_path / "out" / "curve.json").read_bytes())


def test_the_table_fits_a_terminal_and_marks_the_knee() -> None:
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
