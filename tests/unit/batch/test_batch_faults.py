"""Full disks stop clearly and lose nothing; files that are cut, foreign or mixed up are found and named."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import msgspec
import pytest
from click.testing import CliRunner

from exahpc.agent.leases import LeaseWorker
from exahpc.batch.client import Owner
from exahpc.batch.export import export
from exahpc.batch.gather import Gathered
from exahpc.batch.opened import load
from exahpc.batch.plan import BatchPlan, Parts
from exahpc.batch.results import Results, write_results
from exahpc.batch.run import prepare
from exahpc.batch.segments import Roller
from exahpc.batch.space import NoRoomError
from exahpc.batch.station import Station
from exahpc.cli.batch import batch
from exahpc.errors import BatchError
from exahpc.wire.messages import LeaseGrant
from tests.disks import ROOM, Disk
from tests.unit.batch.batches import answer, begin, commit, error, line

ROWS = 40


@pytest.fixture
def made(tmp_path: Path) -> tuple[Parts, BatchPlan]:
    """Four committed segments' worth of rows, none rolled yet."""
    parts, plan = begin(tmp_path, [line(f"r{i}") for i in range(ROWS)])
    commit(parts, [answer(at, f"text {at} " * 50, range(at)) for at in range(ROWS)], each=10)
    return parts, plan


def rolled(parts: Parts, plan: BatchPlan) -> list[Path]:
    Roller(parts, plan, most_rows=10).roll(everything=True)
    return sorted(parts.segments.glob("*.h5"))


@pytest.mark.parametrize("room", [0, 100, 3000, 10_000, 14_000])
def test_a_full_disk_stops_the_roller_with_path_and_remedy_and_it_goes_on_later(
    made: tuple[Parts, BatchPlan], monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    parts, plan = made
    disk = Disk(monkeypatch)
    disk.left = room
    roller = Roller(parts, plan, most_rows=10)
    with pytest.raises(NoRoomError, match=r"no room to write .*segments.*make room"):
        roller.roll(everything=True)
    assert list(parts.segments.glob(".*")) == [], "nothing half-made stays"
    disk.left = ROOM
    roller.roll(everything=True)
    with Gathered(parts, plan) as gathered:
        assert gathered.missing == 0


@pytest.mark.parametrize("room", [0, 100, 3000, 30_000])
def test_a_full_disk_leaves_no_results_file_and_no_descriptor_and_the_next_attempt_succeeds(
    made: tuple[Parts, BatchPlan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    parts, plan = made
    rolled(parts, plan)
    disk = Disk(monkeypatch)
    before, there = sorted(os.listdir(tmp_path)), len(os.listdir("/proc/self/fd"))
    disk.left = room
    with pytest.raises(NoRoomError, match=r"no room to write .*o\.h5.*run the same command again"):
        write_results(tmp_path / "o.h5", parts, plan)
    assert sorted(os.listdir(tmp_path)) == before
    assert len(os.listdir("/proc/self/fd")) == there
    disk.left = ROOM
    assert write_results(tmp_path / "o.h5", parts, plan).ok == ROWS


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system can only be mounted by root")
def test_a_file_system_that_is_really_full_is_told_for_results_and_export(
    made: tuple[Parts, BatchPlan], tmp_path: Path
) -> None:
    parts, plan = made
    write_results(tmp_path / "o.h5", parts, plan)
    small = tmp_path / "small"
    small.mkdir()
    if os.system(f"mount -t tmpfs -o size=16k tmpfs {small}"):
        pytest.skip("nothing can be mounted here")
    try:
        for action in (
            lambda: write_results(small / "o.h5", parts, plan),
            lambda: export(tmp_path / "o.h5", small / "o.jsonl"),
        ):
            with pytest.raises(NoRoomError, match="MiB are free"):
                action()
            assert os.listdir(small) == []
    finally:
        os.system(f"umount {small}")


def test_an_agent_keeps_its_answers_while_the_disk_is_full_and_leaves_no_heap_of_files(
    made: tuple[Parts, BatchPlan], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    parts, plan = made
    disk, worker = Disk(monkeypatch), LeaseWorker("gpu-9")
    worker.grant(LeaseGrant(1, 1, plan.batch, str(parts.path), 0, 3))
    asyncio.run(worker.sync())
    for row in worker.next_rows(3):
        worker.ended(row.key, 200, b"{}", 1, 1)
    before = sorted(os.listdir(parts.journal))
    disk.left = 0
    for _ in range(5):
        assert not any(message.rows for message in asyncio.run(worker.sync()))
    assert sorted(os.listdir(parts.journal)) == before
    (told,) = (record.getMessage() for record in caplog.records if "results cannot be kept" in record.getMessage())
    assert str(parts.path) in told
    assert "make room" in told
    assert "goes on by itself" in told
    disk.left = ROOM
    (message,) = asyncio.run(worker.sync())
    assert message.rows == [(0, 3)]


# --- files that are not what they should be --------------------------------------------------------------------


def cut(path: Path, others: list[Path]) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path, others: list[Path]) -> None:
    os.truncate(path, 0)


def flip(path: Path, others: list[Path]) -> None:
    data = bytearray(path.read_bytes())
    at = data.index(b"text 15 text 15")
    data[at] ^= 1
    path.write_bytes(data)


def replace(path: Path, others: list[Path]) -> None:
    shutil.copy(others[0], path)


def no_hdf5(path: Path, others: list[Path]) -> None:
    path.write_bytes(b"something else" * 1000)


@pytest.mark.case("B54")
@pytest.mark.parametrize("spoil", [cut, empty, flip, replace, no_hdf5])
def test_a_spoilt_segment_is_named_and_made_again_from_the_journals(
    made: tuple[Parts, BatchPlan], tmp_path: Path, spoil: Callable[[Path, list[Path]], None]
) -> None:
    parts, plan = made
    paths = rolled(parts, plan)
    spoil(paths[1], [paths[0], *paths[2:]])
    with pytest.raises(BatchError, match=f"segment {paths[1]} .*remove all files"):
        write_results(tmp_path / "o.h5", parts, plan)
    for path in parts.segments.iterdir():
        path.unlink()
    assert write_results(tmp_path / "o.h5", parts, plan).ok == ROWS


def gone(path: Path, others: list[Path]) -> None:
    path.unlink()


@pytest.mark.parametrize("spoil", [cut, empty, no_hdf5, gone])
@pytest.mark.parametrize("name", ["index.npy", "order.npy"])
def test_a_spoilt_index_or_order_is_named_before_any_row_is_run_or_counted(
    tmp_path: Path, name: str, spoil: Callable[[Path, list[Path]], None]
) -> None:
    (tmp_path / "in.jsonl").write_text("\n".join([line("a"), line("b"), line("c"), "junk"]))
    prepared = prepare(tmp_path / "in.jsonl", tmp_path / "o.h5", skip_invalid=True)
    prepared.release()
    spoil(prepared.parts.path / name, [])
    for action in (
        lambda: prepare(tmp_path / "in.jsonl", tmp_path / "o.h5", skip_invalid=True),
        lambda: load(prepared.parts, prepared.plan.batch, 1),
        lambda: Station(prepared.parts, prepared.plan.batch, "a-0"),
        *([lambda: export(prepared.parts.path, tmp_path / "o.jsonl")] if name == "order.npy" else []),
    ):
        with pytest.raises(BatchError, match=rf"{name} (is damaged|is gone|tells of)"):
            action()


def test_a_segment_of_another_batch_or_a_missing_one_is_named(
    made: tuple[Parts, BatchPlan], tmp_path: Path
) -> None:
    parts, plan = made
    paths = rolled(parts, plan)
    (tmp_path / "other").mkdir()
    other, its_plan = begin(tmp_path / "other", [line("x")])
    its_plan = msgspec.structs.replace(its_plan, batch="batch_y")
    other.save(its_plan)
    commit(other, [answer(0, "x")], batch="batch_y")
    shutil.copy(rolled(other, its_plan)[0], paths[0])
    with pytest.raises(BatchError, match="belongs to batch_y, not to batch_x"):
        Gathered(parts, plan)
    paths[0].unlink()
    with pytest.raises(BatchError, match=f"{paths[0]} is gone"):
        Roller(parts, plan)


def test_a_cut_or_damaged_results_file_is_named(made: tuple[Parts, BatchPlan], tmp_path: Path) -> None:
    parts, plan = made
    path = tmp_path / "o.h5"
    write_results(path, parts, plan)
    whole = path.read_bytes()
    with h5py.File(path) as file:
        chunks = {name: file[name].id.get_chunk_info(0).byte_offset for name in ("outcome", "response/data")}
    for at in chunks.values():
        path.write_bytes(whole[: at + 9] + bytes([whole[at + 9] ^ 255]) + whole[at + 10 :])
        with pytest.raises(BatchError, match=r"o\.h5 is damaged"):
            export(path, tmp_path / "o.jsonl")
    path.write_bytes(whole[:-100])
    with pytest.raises(BatchError, match=r"o\.h5 cannot be read as HDF5, or is not whole"):
        Results(path)
    with h5py.File(path, "w") as file:
        file.attrs.update(format="exahpc.batch.results", version=2, rows=3)
    with pytest.raises(BatchError, match="dataset row is not there for all of its 3 rows"):
        Results(path)
    with h5py.File(path, "w") as file:
        file["x"] = 1
    with pytest.raises(BatchError, match="not a results file of this version"):
        Results(path)


def test_a_journal_that_is_gone_is_named(made: tuple[Parts, BatchPlan]) -> None:
    parts, plan = made
    journal = next(path for path in parts.journal.iterdir() if path.name.startswith("gpu-3"))
    journal.unlink()
    with pytest.raises(BatchError, match=f"{journal} is gone"):
        Roller(parts, plan).roll(everything=True)


# --- compact ---------------------------------------------------------------------------------------------------


def compact(*words: str | Path) -> Any:
    return CliRunner().invoke(batch, ["compact", *map(str, words)])


def test_compact_makes_one_file_and_removes_the_folder_that_nobody_needs_any_more(
    made: tuple[Parts, BatchPlan], tmp_path: Path
) -> None:
    parts, plan = made
    rolled(parts, plan)
    result = compact(parts.path)
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path / 'o.h5'}\n")
    assert not parts.path.exists()
    results = Results(tmp_path / "o.h5")
    assert results.summary().ok == ROWS
    results.close()


def test_only_what_others_left_for_the_same_output_is_removed(
    made: tuple[Parts, BatchPlan], tmp_path: Path
) -> None:
    """`o.h5.bak` may be what another process writes just now."""
    parts, plan = made
    names = [".o.h5.1.tmp", ".o.h5.bak.1.tmp", ".o1.h5.1.tmp"]
    for name in names:
        (tmp_path / name).write_bytes(b"")
    write_results(tmp_path / "o.h5", parts, plan)
    assert [name for name in names if (tmp_path / name).exists()] == names[1:]


def test_compact_shows_what_is_done_so_far_only_elsewhere(tmp_path: Path) -> None:
    parts, _ = begin(tmp_path, [line("a"), line("b")])
    commit(parts, [error(1, "x")])
    for words, told in [
        ((tmp_path / "o.h5",), "1 of 2 rows are not done"),
        ((tmp_path / "o.h5", "--partial"), "name another output for a part of it"),
        ((tmp_path / "none.h5",), "holds no batch"),
        ((tmp_path / "o.h5", "-o", tmp_path / "in.jsonl"), "exists"),
    ]:
        result = compact(*words)
        assert isinstance(result.exception, BatchError)
        assert told in str(result.exception)
    assert compact(parts.path, "--partial", "-o", tmp_path / "part.h5").exit_code == 0
    results = Results(tmp_path / "part.h5")
    assert (results.summary().total, results.summary().failed) == (1, 1)
    results.close()
    assert parts.path.exists()


def test_compact_leaves_a_batch_alone_that_somebody_runs(made: tuple[Parts, BatchPlan]) -> None:
    parts, _ = made
    owner = Owner(parts)
    assert "another `exahpc batch run` works on" in str(compact(parts.path).exception)
    owner.release()
    assert compact(parts.path, "--keep-parts").exit_code == 0
    assert parts.path.exists()


def test_a_client_that_cannot_say_that_it_ends_hides_nothing_else(
    made: tuple[Parts, BatchPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full: how the batch ended must be told, not that."""
    parts, _ = made
    owner = Owner(parts)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("exahpc.batch.client.write_atomic", full)
        owner.release()


def test_a_client_that_could_not_begin_holds_up_no_other(
    made: tuple[Parts, BatchPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, _ = made

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("exahpc.batch.client.write_atomic", full)
        with pytest.raises(OSError, match="No space left"):
            Owner(parts)
    Owner(parts).release()


def test_a_batch_that_is_finished_is_not_told_to_be_begun_in_order_to_be_cancelled(
    made: tuple[Parts, BatchPlan], tmp_path: Path
) -> None:
    parts, plan = made
    rolled(parts, plan)
    write_results(tmp_path / "done.h5", parts, plan)
    done = CliRunner().invoke(batch, ["cancel", str(tmp_path / "done.h5")])
    assert "done.h5 is finished" in str(done.exception)
