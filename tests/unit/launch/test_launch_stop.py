"""`down` waits for an orderly end, asks Slurm ever more rarely, and then leaves nothing."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from exahpc.errors import ExahpcError
from exahpc.launch import local, stop
from exahpc.slurm import remote
from exahpc.slurm.api import JobRecord, Submission
from exahpc.slurm.jobbook import JobBook
from exahpc.wire.folder import Folder, runtime_directory

TOML = 'name = "d"\nmodel.path = "/m"\n[[pool]]\nname = "a"\n'


class FakeSlurm:
    """Jobs that end by themselves at a time, or some seconds after a cancel. Keeps when it was asked."""

    name = "fake"

    def __init__(self, ends: float, stubborn: float = 0.0) -> None:
        self.now, self.ends, self.stubborn = 0.0, ends, stubborn
        self.asked: list[float] = []
        self.cancelled: list[str] = []

    def jobs(self, ids: Sequence[str]) -> list[JobRecord]:
        self.asked.append(self.now)
        return [JobRecord(i, "completed" if self.now >= self.ends else "running", "RUNNING") for i in ids]

    def named(self, name: str, folder: str) -> set[str]:
        return {"7", "8"}

    def topology(self) -> dict[str, str]:
        return {}

    def cancel(self, job: str, *, signal: str | None = None) -> None:
        self.cancelled.append(job)
        self.ends = min(self.ends, self.now + self.stubborn)

    def submit(self, submission: Submission) -> str:
        raise AssertionError("nothing is submitted here")

    def requeue(self, job: str, *, exclude: str | None = None) -> None:
        raise AssertionError("nothing is requeued here")

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def finish(tmp_path: Path, slurm: FakeSlurm, seconds: float) -> None:
    folder = Folder.create(tmp_path / "d", TOML)
    JobBook("7", {"a": ["8"]}).save(folder.path)
    stop.finish(folder, slurm, seconds=seconds, clock=lambda: slurm.now, sleep=slurm.sleep)


def test_jobs_that_end_in_time_are_not_cancelled(tmp_path: Path) -> None:
    slurm = FakeSlurm(ends=25.0)
    finish(tmp_path, slurm, 60.0)
    assert slurm.cancelled == []


def test_slurm_is_asked_ever_more_rarely(tmp_path: Path) -> None:
    slurm = FakeSlurm(ends=1000.0)
    finish(tmp_path, slurm, 60.0)
    waits = [after - before for before, after in zip(slurm.asked, slurm.asked[1:], strict=False) if after > before]
    assert waits == [2.0, 4.0, 8.0, 10.0, 10.0, 10.0, 10.0, 10.0]


def test_what_does_not_end_is_cancelled_and_awaited(tmp_path: Path) -> None:
    slurm = FakeSlurm(ends=1000.0, stubborn=20.0)
    finish(tmp_path, slurm, 5.0)
    assert slurm.cancelled == ["7", "8"]


def test_what_cannot_be_cancelled_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExahpcError, match=r"still running: job 7 \(RUNNING\), job 8"):
        finish(tmp_path, FakeSlurm(ends=1000.0, stubborn=500.0), 5.0)


@pytest.mark.parametrize("slurm", [FakeSlurm(ends=0.0), None], ids=["slurm", "local"])
def test_processes_that_lost_their_supervisor_are_ended_without_waiting(
    tmp_path: Path, slurm: FakeSlurm | None
) -> None:
    folder = Folder.create(tmp_path / "d", TOML)
    JobBook("7", {"a": ["8"]}).save(folder.path)
    orphan = subprocess.Popen(
        [sys.executable, "-c", "print(1, flush=True); import time; time.sleep(60)", "--folder", str(folder.path)],
        stdout=subprocess.PIPE,
    )
    assert orphan.stdout is not None
    assert orphan.stdout.readline() == b"1\n"

    def nobody_waits(seconds: float) -> None:
        raise AssertionError("waited")

    try:
        stop.finish(folder, slurm, seconds=45.0, clock=lambda: 0.0, sleep=nobody_waits)
        assert orphan.wait(5) != 0
    finally:
        orphan.kill()
        orphan.wait()


def test_what_a_dead_broker_wished_is_not_done_by_the_next_watcher(tmp_path: Path) -> None:
    folder = Folder.create(tmp_path / "d", TOML)
    wish = remote.directory(folder.path) / "1.wish"
    wish.write_bytes(b"{}")
    finish(tmp_path, FakeSlurm(ends=0), seconds=1)
    assert not wish.exists()


def test_nothing_is_left_in_the_runtime_directory(tmp_path: Path) -> None:
    found = runtime_directory(tmp_path / "d", socket.gethostname())
    (found / "a-0.sock").touch()
    finish(tmp_path, FakeSlurm(ends=0.0), 5.0)
    assert not found.exists()


def test_supervisors_of_this_machine_are_killed_right_after_the_jobs(tmp_path: Path) -> None:
    """The head on the login node does not keep `down` waiting for jobs that were cancelled."""
    slurm = FakeSlurm(ends=1000.0)
    folder = Folder.create(tmp_path / "d", TOML)
    local.start(folder, {"head": ("sleep", "60")})
    JobBook(None, {"a": ["8"]}).save(folder.path)
    stop.finish(folder, slurm, seconds=5.0, clock=lambda: slurm.now, sleep=slurm.sleep)
    assert (slurm.cancelled, slurm.now, local.living(folder)) == (["8"], 6.0, [])
