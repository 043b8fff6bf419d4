"""`exahpc status` shows what a replica's ranks are busy with."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from exahpc.cli import main
from exahpc.cli.status import _view
from exahpc.wire.folder import Folder
from exahpc.wire.messages import AgentStatus, BatchStatus, EntryStatus, ReplicaState, Service, StatusReply


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


def shown(reply: StatusReply, folder: Path, *, every: bool = False, width: int = 200) -> list[str]:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(_view(Folder(folder), reply, every=every))
    return capture.get().splitlines()


def test_an_ill_replica_shows_what_it_has_and_why_and_a_dead_one_its_last_words(tmp_path: Path) -> None:
    states = [
        ReplicaState(0, 1, "ready", service=Service(ttft=0.4, tbt=0.09)),
        ReplicaState(1, 2, "down", story="signal SIGKILL"),
        ReplicaState(2, 1, "ready"),
    ]
    health = [(0, "tripped", "4.1 times as slow"), (1, "silent", "old news")]
    agent = AgentStatus("a", 0, "n1", "7_0", "RUNNING", True, 0.1, 0, states, health)
    lines = shown(StatusReply(1, 3, 2, [agent], [], [], []), tmp_path)
    tripped, down, ready = lines[2:5]
    for words, line in (("tripped", tripped), ("4.1 times as slow", tripped), ("400 / 90 ms", tripped)):
        assert words in line
    assert "down" in down
    assert "signal SIGKILL" in down
    assert "ready" in ready


def test_why_a_batch_waits_is_told(tmp_path: Path) -> None:
    found = [BatchStatus(f"b-{state}", "/f", 9, 1, 0, 0, state, "no room") for state in ("running", "failed")]
    lines = shown(StatusReply(1, 0, 0, [], [], found, []), tmp_path)
    assert [line.strip() for line in lines if "no room" in line] == ["b-running: no room"]


def test_a_narrow_terminal_still_tells_whose_row_it_is_and_how_it_does(tmp_path: Path) -> None:
    states = [ReplicaState(10, 12, "ready", running=12, kv_free=131072, service=Service(ttft=0.4, tbt=0.09))]
    agent = AgentStatus(
        "short", 131, "n0131", "81234_131", "RUNNING", True, 0.1, 0, states, [(10, "tripped", "hot")]
    )
    entry = EntryStatus(0, "https://10.1.0.7:35501/v1", "n0131", 1, 2, 3, 4)
    text = "\n".join(shown(StatusReply(1, 1, 1, [agent], [entry], [], []), tmp_path, width=80))
    for words in ("short/131", "n0131", "10.12", "tripped", "n0131 0", "https://10.1.0.7:35501/v1"):
        assert words in text, text


def test_three_thousand_replicas_are_a_page_with_all_that_is_not_well(tmp_path: Path) -> None:
    agents = []
    for task in range(256):
        states = [ReplicaState(12 * task + n, 1, "ready", running=2, token_rate=10.0) for n in range(12)]
        agents.append(AgentStatus("a", task, f"n{task}", f"7_{task}", "RUNNING", True, 0.1, 0, states))
    agents[7] = AgentStatus("a", 7, "n7", "7_7", "PENDING", False, 99.0, 0, [])
    agents[9].replicas[3] = ReplicaState(111, 1, "loading")
    agents[11] = AgentStatus(
        "a", 11, "n11", "7_11", "", True, 0.1, 0, agents[11].replicas, [(133, "tripped", "hot")]
    )
    agents[13] = AgentStatus("a", 13, "", "", "", False, 0.0, 0, [], parked=True)
    entries = [EntryStatus(0, f"http://n{n}", f"n{n}", 1, 2, 3, 4) for n in range(256)]
    reply = StatusReply(1, 3072, 3047, agents, entries, [], [])
    lines = shown(reply, tmp_path)
    assert len(lines) < 20
    text = "\n".join(lines)
    for words in ("254/256", "3046 ready, 1 loading, 1 tripped", "6094", "lost, last beat 99 s", "hot", "all 256"):
        assert words in text, (words, text)
    assert "a/13" not in text
    assert len(shown(reply, tmp_path, every=True)) > 3000


def test_a_page_stays_a_page_when_nothing_is_well(tmp_path: Path) -> None:
    agents = [AgentStatus("a", task, "", "", "", False, 9.0, 0, []) for task in range(256)]
    lines = shown(StatusReply(1, 3072, 0, agents, [], [], []), tmp_path)
    assert len(lines) < 60
    assert "and 208 more (--all)" in "\n".join(lines)
