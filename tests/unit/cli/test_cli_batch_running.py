"""`batch run` with nodes of its own: checked before, taken down after, whatever happens in between."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from exahpc.batch.run import Prepared, Summary
from exahpc.cli import main, running
from exahpc.cli.signals import Terminated
from exahpc.deployment.spec import Deployment
from exahpc.errors import BatchBusy, BatchCancelled, BatchError
from exahpc.wire.folder import Folder
from tests.unit.lab.test_lab_hire import CONFIG

LINE = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"model": "tiny", "prompt": "x"}}


class World:
    """acts: what was done, in order; drive: what happens while rows run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.folder, self.acts = folder, list[str]()
        self.drive: Callable[[], Summary] = lambda: Summary(1, 1, 0, None, folder / "out.h5")
        (folder / "tiny").mkdir()
        (folder / "tiny" / "config.json").write_text(json.dumps(CONFIG))
        (folder / "in.jsonl").write_text(json.dumps(LINE))
        world = self

        class Fake:
            text = ""
            ask = None

            def __init__(self, deployment: Deployment, *_: object, **__: object) -> None:
                self.folder = Folder(folder / deployment.name)

            def bring_up(self) -> None:
                world.acts.append("up")

            def take_down(self) -> None:
                world.acts.append("down")

            def purge(self) -> None:
                world.acts.append("purge")

        def drive(prepared: Prepared, *_: object, over: Callable[[], None], **__: object) -> Summary:
            summary = self.drive()
            over()
            self.acts.append("results")
            return summary

        monkeypatch.setenv("EXAHPC_HOME", str(folder / "home"))
        monkeypatch.setattr(running, "Hired", Fake)
        monkeypatch.setattr("exahpc.batch.run.drive", drive)
        for name in ("check_model", "check_programs"):
            monkeypatch.setattr(f"exahpc.launch.prepare.{name}", lambda _: None)

    def run(self, *more: str) -> Result:
        argv = ["batch", "run", str(self.folder / "in.jsonl"), "-o", str(self.folder / "out.h5")]
        own = ["--model", str(self.folder / "tiny"), "--launcher", "local"]
        return CliRunner().invoke(main, [*argv, *own, *more])

    def fails(self, error: BaseException) -> None:
        def drive() -> Summary:
            raise error

        self.drive = drive


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    return World(monkeypatch, tmp_path)


def told(done: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_nodes_are_given_back_before_the_results_are_written_and_nothing_is_left(world: World) -> None:
    done = world.run("--json")
    assert (done.exit_code, told(done)["exit_code"], told(done)["rows"]) == (0, 0, 1)
    assert world.acts == ["up", "down", "results", "down", "purge"]


def test_an_input_with_a_bad_row_asks_for_no_node(world: World) -> None:
    (world.folder / "in.jsonl").write_text("[1]")
    done = world.run("--json")
    assert (done.exit_code, told(done)["state"], world.acts) == (1, "failed", [])
    assert "line 1" in told(done)["error"]


@pytest.mark.parametrize(
    ("error", "code", "state"),
    [
        (BatchError("no"), 1, "failed"),
        (BatchCancelled("no"), 6, "failed"),
        (KeyboardInterrupt(), 130, "stopped"),
        (Terminated(), 143, "stopped"),
    ],
)
def test_nodes_are_given_back_whatever_the_end_is(
    world: World, error: BaseException, code: int, state: str
) -> None:
    world.fails(error)
    done = world.run("--json")
    assert (done.exit_code, told(done)["exit_code"], told(done)["state"]) == (code, code, state)
    assert world.acts == ["up", "down"]


def test_who_was_replaced_leaves_the_nodes_to_the_one_who_replaced_it(world: World) -> None:
    world.fails(BatchBusy("another one has taken over"))
    assert world.run().exit_code == 5
    assert world.acts == ["up"]


def test_what_is_kept_stays_up_and_a_user_is_told_how_to_stop_it(world: World) -> None:
    assert world.run("--keep").exit_code == 0
    assert world.acts == ["up", "results"]
    world.fails(KeyboardInterrupt())
    done = world.run("--keep")
    assert done.exit_code == 130
    assert "exahpc batch cancel" in done.stderr
    assert "down" not in world.acts


def test_failed_rows_leave_the_logs_in_place(world: World) -> None:
    world.drive = lambda: Summary(2, 1, 1, "no", world.folder / "out.h5")
    assert world.run().exit_code == 3
    assert world.acts[-1] == "down"


@pytest.mark.parametrize("more", [("--deployment", "x"), ()])
def test_it_must_be_clear_who_runs_the_rows(world: World, more: tuple[str, ...]) -> None:
    argv = ["batch", "run", str(world.folder / "in.jsonl"), "-o", str(world.folder / "out.h5"), *more]
    own = ["--model", str(world.folder / "tiny")] if more else []
    done = CliRunner().invoke(main, [*argv, *own])
    assert (done.exit_code, "who runs it?" in done.stderr) == (2, True)
