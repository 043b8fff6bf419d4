"""The clerk with stand-ins for workers, and as a process that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from exahpc.clerk.main import Clerk
from exahpc.clerk.queue import AGAIN, MOST_CRASHES
from exahpc.wire.folder import Folder
from exahpc.wire.shelf import STALE_SECONDS, Shelf, sweep
from exahpc.wire.submissions import FileRecord, Order, State, Submission
from exahpc.wire.tray import Tray
from tests.live import processes_of, until

TOML = '[model]\npath = "/nowhere/tiny"\n[[pool]]\nname = "a"\n[launcher]\nkind = "local"\n'


class Stub:
    """Workers that end with the codes in `codes`, or run until told."""

    def __init__(self, tray: Tray) -> None:
        self.tray, self.codes, self.started = tray, dict[str, list[int]](), list[str]()

    def start(self, batch: str) -> subprocess.Popen[bytes]:
        self.started.append(batch)
        code = self.codes.get(batch, [])
        what = f"exit {code.pop(0)}" if code else "cat"
        return subprocess.Popen(["bash", "-c", what], stdin=subprocess.PIPE)


def put(tray: Tray, owner: str = "") -> str:
    batch = tray.new_id()
    tray.submit(Submission(batch, 1, owner, ("/in",), "/out"))
    return batch


@pytest.fixture
def tray(tmp_path: Path) -> Tray:
    return Tray(tmp_path)


class Time:
    """Seconds that pass only while no worker runs: a machine that is slow is no worker that lives long."""

    def __init__(self, clerk: Clerk) -> None:
        self._clerk, self._now = clerk, 1000.0

    def turn(self) -> None:
        if not self._clerk._workers:
            self._now += 20.0
        self._clerk.turn(self._now)

    def until(self, what: str, check: Callable[[], bool]) -> None:
        def look() -> bool:
            self.turn()
            return check()

        until(what, look, 60, 0.02)


def test_batches_are_found_whenever_they_come_and_their_workers_end_with_the_clerk(tray: Tray) -> None:
    stub = Stub(tray)
    clerk = Clerk(tray, 4, stub.start)
    clerk.turn(0.0)
    assert stub.started == []
    passing, first = Time(clerk), put(tray)
    passing.until("the first one runs", lambda: stub.started == [first])
    second = put(tray)
    passing.turn()
    assert stub.started == [first, second]
    workers = list(clerk._workers.values())
    clerk.end()
    assert all(worker.poll() is not None for worker in workers)


def test_who_waits_need_not_wait_to_be_cancelled_or_to_expire(tray: Tray) -> None:
    stub = Stub(tray)
    clerk = Clerk(tray, 1, stub.start)
    passing, first = Time(clerk), put(tray)
    passing.until("the first one runs", lambda: stub.started == [first])
    cancelled, waiting, begun, late = put(tray), put(tray), put(tray), tray.new_id()
    order = Order("file-1", "/v1/completions", "1h", 3600)
    tray.submit(Submission(late, 1, "name me", ("/in",), "/out", order=order))
    tray.save(begun, State("in_progress"))
    tray.cancel(cancelled)
    tray.cancel(begun)
    clerk.turn(5000.0)
    phases = [tray.state(batch).phase for batch in (first, cancelled, waiting, late, begun)]
    assert phases == ["validating", "cancelled", "validating", "expired", "in_progress"]
    assert stub.started == [first], "what was begun is its next worker's"
    clerk.end()


def test_a_worker_that_crashes_is_replaced_and_in_the_end_its_batch_fails_with_a_reason(tray: Tray) -> None:
    stub, batch = Stub(tray), put(tray)
    stub.codes[batch] = [AGAIN, *([9] * MOST_CRASHES)]
    clerk = Clerk(tray, 1, stub.start)
    Time(clerk).until("it has failed", lambda: tray.state(batch).phase == "failed")
    assert len(stub.started) == 1 + MOST_CRASHES
    assert "exahpc logs" in tray.state(batch).note
    assert tray.state(batch).errors[0].code == "batch_failed"
    again = Stub(tray)
    Clerk(tray, 1, again.start).turn(0.0)
    assert again.started == [], "what has ended stays ended"


def test_what_an_ended_batch_left_is_cleared_but_not_its_request_and_state(tray: Tray) -> None:
    batch = put(tray)
    tray.save(batch, State("completed"))
    (tray.folder(batch) / "results.h5.parts").mkdir()
    (tray.folder(batch) / "input.jsonl").write_text("x")
    Clerk(tray, 1, Stub(tray).start).turn(0.0)
    assert sorted(path.name for path in tray.folder(batch).iterdir()) == ["request.json", "state.json"]


def test_only_leftovers_are_swept_never_a_file_that_exists(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, "me")
    shelf.create()
    kept, cut, lost = shelf.new_id(), shelf.new_id(), shelf.new_id()
    for file in (kept, cut):
        shelf.part(file).write_bytes(b"x")
    shelf.publish(FileRecord(kept, 1, 1, "x", "batch"))
    shelf.content(lost).write_bytes(b"x")  # deleted between its record and its bytes
    sweep(tmp_path, time.time())
    assert shelf.part(cut).exists(), "it may be coming in still"
    sweep(tmp_path, time.time() + STALE_SECONDS + 10)
    assert not shelf.part(cut).exists()
    assert not shelf.content(lost).exists()
    assert (shelf.content(kept).exists(), shelf.ids()) == (True, [kept])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_however_the_clerk_ends_no_worker_stays(tmp_path: Path, number: signal.Signals) -> None:
    folder = Folder.create(tmp_path / "unit", f'name = "unit"\n{TOML}')
    tray = Tray(folder.path)
    os.mkfifo(tmp_path / "in.jsonl")  # validating it takes for ever
    batch = tray.new_id()
    tray.submit(Submission(batch, 1, "", (str(tmp_path / "in.jsonl"),), str(tmp_path / "out.h5")))
    argv = [sys.executable, "-m", "exahpc.clerk", "--folder", str(folder.path)]
    with open(tmp_path / "log", "wb") as log:
        clerk = subprocess.Popen(argv, stderr=log, start_new_session=True)
    try:
        until("a worker runs", lambda: any(batch in line for line in processes_of(folder.path)), 60)
        clerk.send_signal(number)
        assert clerk.wait(60) == (0 if number == signal.SIGTERM else -number)
        until("no worker is left", lambda: not processes_of(folder.path), 60)
    finally:
        for line in processes_of(folder.path):
            os.kill(int(line.split()[0]), signal.SIGKILL)


def test_a_worker_of_a_batch_that_has_ended_ends_with_0_and_nothing_else_does(tmp_path: Path) -> None:
    folder = Folder.create(tmp_path / "unit", f'name = "unit"\n{TOML}')
    tray = Tray(folder.path)
    batch = put(tray)
    tray.save(batch, State("completed"))

    def code(name: str) -> int:
        argv = [sys.executable, "-m", "exahpc.clerk", "--folder", str(folder.path), "--batch", name]
        worker = subprocess.Popen(argv, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            return worker.wait(60)  # its standard input stays open
        finally:
            worker.kill()
            worker.communicate()

    assert code(batch) == 0
    assert code(tray.new_id()) == 1


def test_a_batch_whose_worker_cannot_be_started_now_is_started_later(tray: Tray) -> None:
    stub, room = Stub(tray), [False]

    def start(batch: str) -> subprocess.Popen[bytes]:
        if not room[0]:
            raise BlockingIOError("no more processes")
        return stub.start(batch)

    clerk = Clerk(tray, 4, start)
    batches = [put(tray), put(tray)]
    clerk.turn(0.0)
    room[0] = True
    Time(clerk).until("both run", lambda: sorted(stub.started) == sorted(batches))
    clerk.end()


def test_a_failure_that_cannot_be_written_down_is_written_down_later(
    tray: Tray, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub, batch, save = Stub(tray), put(tray), Tray.save
    stub.codes[batch] = [1] * 3 * MOST_CRASHES
    clerk = Clerk(tray, 4, stub.start)
    refused = list[str]()

    def full(tray: Tray, batch: str, state: State) -> None:
        refused.append(batch)
        raise OSError(28, "No space left on device")

    def turned() -> bool:
        try:
            passing.turn()
        except OSError:
            monkeypatch.setattr(Tray, "save", save)
        return tray.state(batch).ended

    monkeypatch.setattr(Tray, "save", full)
    passing = Time(clerk)
    until("it is told as failed", turned, 60, 0.02)
    assert (refused, tray.state(batch).phase) == ([batch], "failed")
    clerk.end()
