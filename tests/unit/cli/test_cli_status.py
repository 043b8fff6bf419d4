"""`exahpc status` shows what a replica's ranks are busy with."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from exahpc.cli import main
from exahpc.cli.status import _view
from exahpc.wire.folder import Folder
from exahpc.wire.messages import AgentStatus, ReplicaState, StatusReply


@pytest.mark.parametrize(
    ("kind", "running", "shown"),
    [("local", [], "down"), ("local", ["process 7"], "no answer"), ("slurm", [], "no answer")],
)
def test_the_list_tells_what_is_down_from_what_does_not_answer(
    kind: str, running: list[str], shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXAHPC_HOME", str(tmp_path))
    monkeypatch.setattr("exahpc.launch.local.running", lambda _: running)
    Folder.create(tmp_path / "d", f'name="d"\nmodel.path="/m"\nlauncher.kind="{kind}"\n[[pool]]\nname="a"\n')
    done = CliRunner().invoke(main, ["status"])
    assert done.output.split("\t")[:2] == ["d", shown]


@pytest.mark.parametrize(
    ("idle", "shown"), [([], ""), ([0.5], ""), ([0.04, 0.087], "4-9 %"), ([0.041, 0.039, 0.04], "4 %")]
)
def test_the_idle_column_is_about_replicas_of_several_ranks(idle: list[float], shown: str, tmp_path: Path) -> None:
    state = ReplicaState(0, 1, "ready", running=3, idle=idle)
    agent = AgentStatus("a", 0, "n1", "7_0", "RUNNING", True, 0.1, 0, [state])
    console = Console(width=200)
    with console.capture() as capture:
        console.print(_view(Folder(tmp_path), StatusReply(1, 1, 1, [agent], [], [], [])))
    lines = capture.get().splitlines()
    header, row = lines[1:3]
    column = header[header.index("idle") :].split("KV")[0]
    at = header.index("idle")
    assert row[at : at + len(column)].strip() == shown
