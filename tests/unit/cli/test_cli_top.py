"""Laws of `exahpc top`, with an EMULATED fleet of 3,072 replicas."""

from __future__ import annotations

import io
import json
import os
import time
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console

from exahpc.cli import main, top
from exahpc.cli.top_view import Look, View, page
from exahpc.deployment.parse import load
from exahpc.telemetry.glance import seconds_of
from exahpc.telemetry.map import fleet_map
from exahpc.wire import messages as m
from exahpc.wire.folder import Folder
from tests.unit.entry.watched import BATCHES, EACH, NODES, TOML, TRIPPED, emulated

VIEW = View("watched", "emulated-70b")


@pytest.fixture(scope="module")
def look() -> Look:
    now = time.time()
    aggregate, _ = emulated(now)
    figures = msgspec.structs.replace(aggregate.answer(m.FiguresQuery(), now), batches=BATCHES)
    return Look(fleet_map(aggregate), figures)


def lines(view: View, look: Look, width: int = 80, height: int | None = None) -> list[str]:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(page(view, look, width, height).shown)
    written = console.file
    assert isinstance(written, io.StringIO)
    return written.getvalue().splitlines()


def test_a_whole_fleet_is_legible_without_colours_in_80_columns(look: Look) -> None:
    found = lines(VIEW, look)
    assert max(map(len, found)) <= 80
    text = "\n".join(found)
    assert "EMULATED" in found[0], "nobody takes it for a real one"
    row = next(line for line in found if line.startswith("emulated-005 "))
    assert row.split()[1][TRIPPED % EACH] == "T"
    assert text.count("?" * EACH) == 2, "tasks that are not heard"
    assert "firing replicas: 98 %" in text
    assert "batch reviews-7c1e running  1,610,635 of 2,400,000 rows 67 %  412 failed" in text


def test_a_small_terminal_is_never_overfull_and_scrolls_to_the_end(look: Look) -> None:
    view = VIEW
    for mode in "sltcvw":
        view = view.press(mode)
        found = lines(view, look, height=24)
        assert len(found) <= 24
        assert max(map(len, found)) <= 80
    assert any(f"emulated-{NODES - 1} " in line for line in lines(VIEW.press("G"), look, height=24))
    assert lines(VIEW.press("G").press("g"), look, height=24) == lines(VIEW, look, height=24)
    at_the_end = page(VIEW.press("G"), look, 80, 24).view
    assert page(at_the_end.press("k"), look, 80, 24).view.top == at_the_end.top - 1, "and back"
    assert VIEW.press("x") == VIEW.press("") == VIEW


def test_keys_that_come_together_are_all_taken() -> None:
    read, write = os.pipe()
    os.write(write, b"l\x1b[6~\x1bOAw\x1b[Zq")
    pressed = top.Pressed(read)
    assert [pressed.wait(5.0) for _ in range(6)] == ["l", " ", "k", "w", "", "q"]
    assert pressed.wait(0.0) == ""
    os.close(write)
    assert pressed.wait(5.0) == "q", "the terminal is gone"
    os.close(read)


def test_nodes_that_are_not_well_come_first_when_wanted(look: Look) -> None:
    rows = [line for line in lines(VIEW.press("w"), look) if line.startswith("emulated-")]
    assert rows[0].startswith("emulated-130 ????????????")
    assert "emulated-131 ????????????" in rows[0]


def test_load_and_latency_are_digits(look: Look) -> None:
    for mode in "ltc":
        row = next(line for line in lines(VIEW.press(mode), look) if line.startswith("emulated-000 "))
        assert all(glyph.isdigit() or glyph in "+l" for glyph in row.split()[1]), row


def test_json_names_every_replica_and_its_time_to_the_first_token(
    look: Look, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = Folder.create(tmp_path / "watched", TOML)
    monkeypatch.setattr(top, "opened", lambda name: (folder, load(TOML)))
    monkeypatch.setattr(top, "_look", lambda folder: look)
    done = CliRunner().invoke(main, ["top", "watched", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert sum(len(task["replicas"]) for task in found["tasks"]) == NODES * EACH
    task = found["tasks"][TRIPPED // EACH]
    assert (task["node"], task["replicas"][TRIPPED % EACH]["state"]) == ("emulated-005", "tripped")
    assert found["rows"][0]["wanted"] == NODES * EACH
    assert "cells" not in found
    plain = CliRunner().invoke(main, ["top", "watched", "--once"])
    assert plain.exit_code == 0
    assert "watched  emulated-70b" in plain.stdout


def test_without_a_broker_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = Folder.create(tmp_path / "watched", TOML)
    monkeypatch.setattr(top, "opened", lambda name: (folder, load(TOML)))
    done = CliRunner().invoke(main, ["top", "watched", "--once"])
    assert done.exit_code == 1
    assert "exahpc status" in done.stderr


def test_a_cells_byte_reads_as_the_seconds_that_were_written() -> None:
    assert seconds_of(0) == 0
    assert seconds_of(40) == pytest.approx(0.3)
