"""Slurm through a watcher: every call is done once, and a watcher that is not there is said so."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread
from typing import Any

import msgspec
import pytest

from exahpc.errors import SlurmError
from exahpc.slurm.api import JobRecord, RequeueDisabled, SlurmClient, Submission, Unanswered
from exahpc.slurm.remote import Cancel, Remote, Watcher, directory
from exahpc.wire.folder import write_atomic

SUBMISSION = Submission("n", "/s", ("--folder", "/f"), ("--nodes=1",), "3")
RECORD = JobRecord("7_0", "running", "RUNNING", "", ("n1",), 2, 90.0)


class Slurm:
    """Answers, and writes down what it was asked."""

    name = "scripted"

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []

    def submit(self, submission: Submission) -> str:
        self.asked.append(("submit", submission))
        return "8"

    def jobs(self, ids: Sequence[str]) -> list[JobRecord]:
        self.asked.append(("jobs", *ids))
        return [RECORD]

    def requeue(self, job: str, *, exclude: str | None = None) -> None:
        self.asked.append(("requeue", job, exclude))
        raise RequeueDisabled("presently disabled")

    def hurry(self, job: str) -> bool:
        self.asked.append(("hurry", job))
        return True

    def cancel(self, job: str, *, signal: str | None = None) -> None:
        self.asked.append(("cancel", job, signal))
        raise SlurmError("socket timed out")

    def named(self, name: str, folder: str) -> set[str]:
        return {"7", "8"}

    def topology(self) -> dict[str, str]:
        return {"n1": "leaf1"}


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Slurm]:
    """A Slurm behind a watcher that watches."""
    slurm, over = Slurm(), Event()
    watcher = Watcher(tmp_path, slurm)

    def watch() -> None:
        while not over.wait(0.01):
            watcher.turn()

    thread = Thread(target=watch)
    thread.start()
    yield slurm
    over.set()
    thread.join()
    watcher.close()


def client(folder: Path) -> SlurmClient:
    return Remote(folder, patience=60.0, doing=60.0, poll=0.01)


def test_every_call_comes_through_and_back_and_leaves_no_file(tmp_path: Path, slurm: Slurm) -> None:
    remote = client(tmp_path)
    assert remote.submit(SUBMISSION) == "8"
    assert remote.jobs(["7"]) == [RECORD]
    assert remote.jobs([]) == []
    assert remote.hurry("7_0") is True
    assert remote.topology() == {"n1": "leaf1"}
    assert remote.named("exahpc-x-a", "/f") == {"7", "8"}
    with pytest.raises(RequeueDisabled, match="presently disabled"):
        remote.requeue("7_0", exclude="n1,n2")
    with pytest.raises(SlurmError, match="socket timed out"):
        remote.cancel("7_0")
    assert slurm.asked == [
        ("submit", SUBMISSION),
        ("jobs", "7"),
        ("hurry", "7_0"),
        ("requeue", "7_0", "n1,n2"),
        ("cancel", "7_0", None),
    ]
    assert list(directory(tmp_path).iterdir()) == []


def test_many_threads_ask_at_once_and_each_gets_its_own_answer(tmp_path: Path, slurm: Slurm) -> None:
    remote = client(tmp_path)
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda n: remote.hurry(str(n)), range(16))) == [True] * 16
    assert sorted(slurm.asked) == sorted(("hurry", str(n)) for n in range(16))


def test_without_a_watcher_the_call_fails_says_how_to_start_one_and_is_never_done_later(tmp_path: Path) -> None:
    remote = Remote(tmp_path, patience=0.0, doing=0.0, poll=0.001)
    with pytest.raises(SlurmError, match=f"exahpc watch {tmp_path.name}"):
        remote.submit(SUBMISSION)
    assert Watcher(tmp_path, Slurm()).turn() == 0


def test_a_wish_that_was_taken_and_not_answered_may_have_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "exahpc.slurm.remote.write_atomic", lambda path, data: path.with_suffix(".taken").write_bytes(data)
    )
    with pytest.raises(Unanswered, match="may have happened"):
        Remote(tmp_path, patience=0.0, doing=0.0, poll=0.001).cancel("7")


@pytest.mark.parametrize("method", ["read_bytes", "unlink"])
def test_a_file_system_that_fails_behind_a_submission_makes_no_second_one(
    tmp_path: Path, slurm: Slurm, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    real = getattr(Path, method)

    def stale(path: Path, **options: bool) -> Any:
        if path.suffix == ".answer":
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(path, **options)

    monkeypatch.setattr(Path, method, stale)
    if method == "unlink":
        assert client(tmp_path).submit(SUBMISSION) == "8"
    else:
        with pytest.raises(Unanswered, match=r"Stale file handle.*: it may have happened"):
            client(tmp_path).submit(SUBMISSION)


def test_what_slurm_never_answered_the_watcher_stays_so_for_who_wished_it(
    tmp_path: Path, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(submission: Submission) -> str:
        raise Unanswered("sbatch did not answer")

    monkeypatch.setattr(slurm, "submit", hang)
    with pytest.raises(Unanswered, match="sbatch did not answer"):
        client(tmp_path).submit(SUBMISSION)


def test_two_watchers_do_everything_once(tmp_path: Path) -> None:
    slurm = Slurm()
    for number in range(20):
        write_atomic(directory(tmp_path) / f"{number:02d}.wish", msgspec.json.encode(Cancel(str(number), None)))
    watchers = [Watcher(tmp_path, slurm) for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        assert sum(threads.map(Watcher.turn, watchers)) == 20
    for watcher in watchers:
        watcher.close()
    assert sorted(job for _, job, _ in slurm.asked) == sorted(map(str, range(20)))


def test_a_new_broker_withdraws_what_an_earlier_one_wished(tmp_path: Path) -> None:
    left = directory(tmp_path) / "1.wish"
    write_atomic(left, msgspec.json.encode(Cancel("7", None)))
    Remote(tmp_path)
    assert not left.exists()


def test_a_wish_that_others_may_have_written_is_not_done(tmp_path: Path) -> None:
    slurm, made = Slurm(), directory(tmp_path) / "1.wish"
    write_atomic(made, msgspec.json.encode(Cancel("7", None)))
    made.chmod(0o620)
    watcher = Watcher(tmp_path, slurm)
    watcher.turn()
    watcher.close()
    assert slurm.asked == []
    assert b"may be somebody else's" in made.with_suffix(".answer").read_bytes()


def test_wishes_are_private(tmp_path: Path) -> None:
    assert stat.S_IMODE(directory(tmp_path).stat().st_mode) == 0o700
