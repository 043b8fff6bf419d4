"""Processes are known by pid and start time, and what a deployment left behind is found by its folder."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from exahpc.launch import processes
from exahpc.launch.processes import Started

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_a_started_process_outlives_us_in_its_own_session_with_a_private_log(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    started = processes.start(["sh", "-c", "echo out; echo err >&2; exec sleep 60"], log)
    try:
        assert processes.alive(started)
        assert os.getsid(started.pid) == started.pid
        assert stat.S_IMODE(log.stat().st_mode) == 0o600
        for _ in range(100):
            if log.read_text() == "out\nerr\n":
                break
            time.sleep(0.05)
        assert log.read_text() == "out\nerr\n"
    finally:
        processes.send([started], signal.SIGKILL)
    assert processes.gone([started], 10)


def test_a_reused_pid_is_not_the_process() -> None:
    ours = Started(os.getpid(), 1)
    assert not processes.alive(ours)
    processes.send([ours], signal.SIGKILL)  # we live on


def test_a_zombie_is_not_alive() -> None:
    child = subprocess.Popen(["true"])
    for _ in range(200):
        if Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.01)
    fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
    assert not processes.alive(Started(child.pid, int(fields[19])))
    child.wait()


@pytest.mark.parametrize("form", [["--folder", "{}"], ["--folder={}"]])
def test_leftovers_are_found_by_their_folder_and_no_other(tmp_path: Path, form: list[str]) -> None:
    mine, other = tmp_path / "a", tmp_path / "ab"
    children = [
        subprocess.Popen([*SLEEP, *(part.format(folder) for part in form)], stdin=subprocess.DEVNULL)
        for folder in (mine, other)
    ]
    try:
        time.sleep(0.2)
        assert [found.pid for found in processes.naming(mine)] == [children[0].pid]
    finally:
        for child in children:
            child.kill()
            child.wait()
    assert processes.naming(mine) == []


def test_waiting_for_the_end_has_an_end() -> None:
    child = subprocess.Popen(SLEEP)
    try:
        fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        assert not processes.gone([Started(child.pid, int(fields[19]))], 0.1)
    finally:
        child.kill()
        child.wait()
