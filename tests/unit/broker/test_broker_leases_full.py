"""A full disk holds a batch: nothing is lost or counted too early, it is told, and it goes on by itself."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exahpc.batch.commits import CommitWriter
from exahpc.batch.run import Prepared, prepare
from exahpc.wire.messages import BatchCancel, BatchState, BatchStatus
from tests.live import until
from tests.unit.broker.batch_world import World, check, exported, write_input

ROWS = 60


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Where no row is begun twice for being slow: each step is half a second, and a busy machine takes many."""
    monkeypatch.setattr("exahpc.broker.leases.STRAGGLER_SECONDS", float("inf"))
    made = World(tmp_path)
    yield made
    made.batches.close()


class Full:
    """`on`: commit journals find no room. Those of agents do: else nobody would report."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.on = False
        self._pwrite = os.pwrite
        monkeypatch.setattr(os, "pwrite", self.pwrite)

    def pwrite(self, fd: int, data: Any, offset: int) -> int:
        if self.on and os.readlink(f"/proc/self/fd/{fd}").split("/")[-2] == "commits":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._pwrite(fd, data, offset)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Full:
    return Full(monkeypatch)


def status_of(world: World, prepared: Prepared) -> BatchStatus:
    return next(one for one in world.batches.status() if one.batch == prepared.plan.batch)


def filled_up(world: World, where: Path, full: Full) -> Prepared:
    """A batch of ROWS on one agent, whose broker finds no more room once some rows have counted."""
    prepared = prepare(write_input(where / "in.jsonl", ROWS), where / "out.h5")
    world.ask(prepared.question)
    world.start_agent("a/0")
    world.run_until(prepared.plan.batch, 10)
    full.on = True
    return prepared


def until_held(world: World, prepared: Prepared) -> BatchStatus:
    def held() -> bool:
        world.step()
        return bool(status_of(world, prepared).note)

    until("it is held", held)
    found = status_of(world, prepared)
    assert f"no room to write {prepared.parts.path}" in found.note
    assert "make room" in found.note
    assert "goes on by itself" in found.note
    return found


def test_a_running_batch_is_held_without_new_leases_and_goes_on_when_there_is_room(
    world: World, tmp_path: Path, full: Full
) -> None:
    prepared = filled_up(world, tmp_path, full)
    assert until_held(world, prepared).state == "running"
    for _ in range(20):
        world.step()
    begun = len(world.seen)
    assert world.batches.work().opening, "the deployment does not end for want of work"
    for _ in range(20):
        world.step()
        found = status_of(world, prepared)
        assert found.ok + found.failed <= len(exported(prepared.parts.path))
    assert len(world.seen) == begun < ROWS
    full.on = False
    until("it goes on", lambda: world.step() or not status_of(world, prepared).note)
    check(tmp_path / "out.h5", ROWS, world.drive(prepared))
    assert len(world.seen) == len({key for _, key in world.seen}) == ROWS, "no row began twice"


def test_what_a_broker_on_a_full_disk_did_not_write_is_found_by_the_next_one(
    world: World, tmp_path: Path, full: Full
) -> None:
    prepared = filled_up(world, tmp_path, full)
    until_held(world, prepared)
    world.batches.close()
    world.start_broker()
    assert until_held(world, prepared).state == "opening"
    full.on = False
    check(tmp_path / "out.h5", ROWS, world.drive(prepared))
    assert len(list(prepared.parts.path.parent.glob("out.h5*"))) == 1


def test_a_batch_that_cannot_be_opened_now_takes_no_lease_from_the_others(
    world: World, tmp_path: Path, full: Full
) -> None:
    first = prepare(write_input(tmp_path / "1.jsonl", 200), tmp_path / "1.h5")
    world.ask(first.question)
    world.start_agent("a/0")
    world.run_until(first.plan.batch, 10)
    world.end_broker()
    second = prepare(write_input(tmp_path / "2.jsonl", 20), tmp_path / "2.h5")
    pwrite = full.pwrite

    def of_second(fd: int, data: Any, offset: int) -> int:
        full.on = str(second.parts.path) in os.readlink(f"/proc/self/fd/{fd}")
        return pwrite(fd, data, offset)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "pwrite", of_second)
        world.start_broker()
        world.ask(second.question)
        world.start_agent("b/0")  # says hello while one is open at most
        until_held(world, second)
        world.run_until(first.plan.batch, 40)
        slow, world.running["b/0"] = world.running["b/0"], []  # these do not end for now
        assert slow
    full.on = False
    until("it is open", lambda: world.step() or status_of(world, second).state == "running")
    for _ in range(5):
        world.step()
    assert {int(row.key.partition(".")[0]) for row in slow} <= set(world.agents["b/0"].leases)
    world.running["b/0"] += slow
    check(tmp_path / "2.h5", 20, world.drive(second))
    check(tmp_path / "1.h5", 200, world.drive(first))
    assert len(world.seen) == len(set(world.seen)) == 220, "no row began twice"


def test_a_held_batch_may_be_cancelled(world: World, tmp_path: Path, full: Full) -> None:
    prepared = prepare(write_input(tmp_path / "in.jsonl", ROWS), tmp_path / "out.h5")
    full.on = True
    world.ask(prepared.question)
    until_held(world, prepared)
    state = world.ask(BatchCancel(prepared.plan.batch))
    assert isinstance(state, BatchState)
    assert (state.status.state, state.status.note) == ("cancelled", "")


def test_another_fault_of_the_disk_ends_the_batch_with_its_reason(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare(write_input(tmp_path / "in.jsonl", ROWS), tmp_path / "out.h5")
    world.ask(prepared.question)
    world.start_agent("a/0")
    world.run_until(prepared.plan.batch, 10)

    def broken(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(CommitWriter, "append", broken)
    until("it ends", lambda: world.step() or status_of(world, prepared).state == "failed")
    assert "Input/output error" in status_of(world, prepared).note


def test_the_list_of_open_batches_is_written_when_there_is_room(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepare(write_input(tmp_path / "in.jsonl", 20), tmp_path / "out.h5")

    def none(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("exahpc.broker.batches.write_atomic", none)
        world.ask(prepared.question)
        world.step()
    for _ in range(10):
        world.step()
    world.end_broker()
    world.start_broker()  # finds the batch without any client
    assert status_of(world, prepared).state == "opening"
    prepared.release()


def test_what_agents_report_while_a_batch_cannot_be_opened_yet_counts_when_it_is_open(
    world: World, tmp_path: Path, full: Full
) -> None:
    prepared = prepare(write_input(tmp_path / "in.jsonl", ROWS), tmp_path / "out.h5")
    world.ask(prepared.question)
    world.start_agent("a/0")
    world.run_until(prepared.plan.batch, 10)
    world.end_broker()
    full.on = True
    world.start_broker()
    slow, world.running["a/0"] = world.running["a/0"][1:], world.running["a/0"][:1]
    assert slow
    until_held(world, prepared)
    for _ in range(20):
        world.step()
    full.on = False
    until("it is open", lambda: world.step() or status_of(world, prepared).state == "running")
    assert {int(row.key.partition(".")[0]) for row in slow} <= set(world.agents["a/0"].leases)
    world.running["a/0"] += slow
    check(tmp_path / "out.h5", ROWS, world.drive(prepared))
    assert len(world.seen) == len({key for _, key in world.seen}) == ROWS, "no row began twice"


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system can only be mounted by root")
@pytest.mark.parametrize("journals", ["on the same disk", "elsewhere"])
def test_a_file_system_that_is_really_full_loses_and_doubles_nothing(
    world: World, tmp_path: Path, journals: str
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if os.system(f"mount -t tmpfs -o size=1m tmpfs {small}"):
        pytest.skip("nothing can be mounted here")
    try:
        prepared = prepare(write_input(tmp_path / "in.jsonl", 3000), small / "out.h5")
        if journals == "elsewhere":
            shutil.move(prepared.parts.journal, tmp_path / "journal")
            prepared.parts.journal.symlink_to(tmp_path / "journal")
        world.ask(prepared.question)
        for name in ("a/0", "a/1"):
            world.start_agent(name)
        world.run_until(prepared.plan.batch, 100)
        with open(small / "filler", "wb", 0) as filler, contextlib.suppress(OSError):
            while True:
                filler.write(b"x" * 4096)
        until_held(world, prepared)
        found = status_of(world, prepared)
        assert found.state == "running"
        assert found.ok + found.failed < 3000
        (small / "filler").unlink()
        world.run_until(prepared.plan.batch, 3000)
        done = {line["custom_id"] for line in exported(prepared.parts.path)}
        assert len(done) == 3000
        assert len(world.seen) == len({key for _, key in world.seen}) == 3000, "no row began twice"
        prepared.release()
    finally:
        world.batches.close()
        for worker in world.agents.values():
            worker._stations._open.clear()
        os.system(f"umount -l {small}")
