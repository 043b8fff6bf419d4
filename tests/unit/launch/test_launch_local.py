"""The local launcher runs the cluster's scripts, remembers what it started, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from exahpc.deployment.parse import load
from exahpc.errors import DeploymentError
from exahpc.launch import local, processes, start
from exahpc.launch.processes import Started
from exahpc.slurm.scripts import directory
from exahpc.wire.folder import Folder

TOML = """
name = "d"
model.path = "/m"
[[pool]]
name = "a"
replicas = 3
replicas_per_task = 2
[launcher]
kind = "local"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder.create(tmp_path / "d", TOML)


def sleeper(folder: Folder) -> tuple[str, ...]:
    """A program that ignores an orderly end."""
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    code = f"import signal, time; {deaf}; print('up', flush=True); time.sleep(60)"
    return (sys.executable, "-c", code, "--folder", str(folder.path))


def test_the_scripts_are_those_of_the_cluster(folder: Folder) -> None:
    commands = local.commands(load(TOML), folder.path, directory())
    assert [argv[:2] for argv in commands.values()] == [
        ("bash", str(directory() / "head.sbatch")),
        ("bash", str(directory() / "replica.sbatch")),
        ("bash", str(directory() / "replica.sbatch")),
    ]
    assert [argv[-1] for argv in list(commands.values())[1:]] == ["0", "1"]


def test_what_was_started_is_found_again_and_ends_even_against_its_will(folder: Folder) -> None:
    local.start(folder, {"head": sleeper(folder), "a-0": sleeper(folder)})
    assert sorted(local.running(folder)) == ["a-0", "head"]
    logs = [folder.path / "logs" / f"{name}.supervisor.log" for name in ("head", "a-0")]
    while not all(log.read_text() for log in logs):
        time.sleep(0.05)
    local.stop(folder, 0.2)
    assert local.running(folder) == []
    assert processes.naming(folder.path) == []
    assert list((folder.path / "local").iterdir()) == []


def test_what_dead_supervisors_left_behind_still_runs(folder: Folder) -> None:
    child = subprocess.Popen(sleeper(folder), stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"  # its command line is in /proc by now
        assert local.running(folder) == [f"process {child.pid}"]
    finally:
        child.kill()
        child.wait()


def test_another_machines_processes_are_not_guessed_about(folder: Folder) -> None:
    note = folder.path / "local" / "head.json"
    note.write_bytes(msgspec.json.encode(Started(1, 2, "elsewhere")))
    with pytest.raises(DeploymentError, match="was started on elsewhere: run this there"):
        local.running(folder)


def test_a_living_deployment_is_not_started_twice(folder: Folder) -> None:
    start.refuse_twice(folder.path, None)
    local.start(folder, {"head": sleeper(folder)})
    try:
        with pytest.raises(DeploymentError, match=r"d is starting or ending \(head\): first `exahpc down d`"):
            start.refuse_twice(folder.path, None)
    finally:
        local.stop(folder, 0.1)
    start.refuse_twice(folder.path, None)


def test_waiting_makes_no_sense_when_a_supervisor_is_gone(folder: Folder) -> None:
    local.start(folder, {"head": sleeper(folder), "a-0": ("true",)})
    try:
        processes.gone([local.supervisors(folder)["a-0"]], 10)
        ended = start.ended(folder, load(TOML), None, time.monotonic)
        assert (ended() or "").startswith("a-0 ended while starting")
    finally:
        local.stop(folder, 0.1)


def test_a_supervisor_that_gives_up_says_why(folder: Folder) -> None:
    gives_up = ("bash", "-c", "echo 'head.sbatch: --python /x cannot be run' >&2; exit 2")
    local.start(folder, {"head": gives_up, "a-0": sleeper(folder)})
    try:
        processes.gone([local.supervisors(folder)["head"]], 10)
        told = start.ended(folder, load(TOML), None, time.monotonic)() or ""
        assert told.startswith("head ended while starting; head.sbatch: --python /x cannot be run: look into ")
    finally:
        local.stop(folder, 0.1)


def test_two_at_once_do_not_start_the_same_deployment(folder: Folder) -> None:
    with start.alone(folder.path):
        with (
            pytest.raises(DeploymentError, match=r"another `exahpc up` of d is at work: wait"),
            start.alone(folder.path),
        ):
            raise AssertionError("not alone")
        with start.alone(folder.path.with_name("other")):
            pass
    with start.alone(folder.path):
        pass


def test_one_that_died_while_starting_keeps_nobody_out(folder: Folder) -> None:
    code = "import sys, time, pathlib; from exahpc.launch import start\n"
    code += "with start.alone(pathlib.Path(sys.argv[1])): print(1, flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code, str(folder.path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"1\n"
    with pytest.raises(DeploymentError, match="at work"), start.alone(folder.path):
        raise AssertionError("not alone")
    child.kill()
    child.wait()
    with start.alone(folder.path):
        pass


def test_what_was_started_keeps_no_lock(folder: Folder) -> None:
    with start.alone(folder.path):
        local.start(folder, {"head": sleeper(folder)})
    try:
        with start.alone(folder.path):
            pass
    finally:
        local.stop(folder, 0.1)
