"""Whatever kills the roller, committed rows come out once, in order, unchanged."""

from __future__ import annotations

import os
import random
import signal
import time
from array import array
from pathlib import Path

import h5py
import msgspec
import pytest

from exahpc.batch.columns import Block
from exahpc.batch.commits import Commit, CommitWriter
from exahpc.batch.gather import Gathered
from exahpc.batch.intervals import ranges_of
from exahpc.batch.journal import FrameWriter, Record, Run
from exahpc.batch.plan import BatchPlan, Parts
from exahpc.batch.results import Results, write_results
from exahpc.batch.segments import Roller, Segment, numbers
from exahpc.errors import BatchError

ROWS = 1200


def body(row: int) -> bytes:
    return b'{"row": %d, "text": "a\\u0000\\ud800"}' % row + b" " * (row % 40)


def record(row: int, lease: int = 1) -> Record:
    status = 500 if row % 100 == 7 else 200
    return Record(
        row, row + 1, status, b"id\x00\xed\xa0\x80%d" % row, body(row), row, 2, lease, 1, "a-0", run(row)
    )


def run(row: int) -> Run:
    ids = array("I", range(row % 5)).tobytes()
    return Run(row % 3, 1 + row % 2, "n1", "", row, row + 0.1, row + 0.2, row + 0.5, 3, ids)


def make(tmp_path: Path, rows: int = ROWS, commit: int | None = None) -> tuple[Parts, BatchPlan]:
    """A folder whose rows (of which `commit` are committed) lie in random order in two journals."""
    parts = Parts(tmp_path / "o.h5.parts")
    parts.create()
    plan = BatchPlan("batch_x", (), "d", rows, 0, 8, "m")
    parts.save(plan)
    writer = CommitWriter(parts.commits, 1, lambda event: None)
    journals = [FrameWriter(parts.journal_file(f"a-{i}-1")) for i in range(2)]
    order = list(range(rows))
    random.Random(3).shuffle(order)
    order = order[:commit]
    for at in range(0, len(order), 30):
        rows_now = order[at : at + 30]
        journal = journals[at // 30 % 2]
        start, end = journal.append([msgspec.msgpack.encode(record(row)) for row in rows_now])
        journal.append([msgspec.msgpack.encode(record(row, lease=9)) for row in rows_now[:2]])  # never committed
        good = ranges_of(row for row in rows_now if record(row).status == 200)
        bad = ranges_of(row for row in rows_now if record(row).status != 200)
        writer.append([Commit(1, journal.path.name, start, end, good, bad)])
    for file in (writer, *journals):
        file.close()
    return parts, plan


def check(path: Path, rows: int = ROWS) -> None:
    results = Results(path)
    block = Block.joined(list(results.blocks(("custom_id", "response", "token_ids"))))
    expected = [record(row) for row in range(rows)]
    assert block.numbers["row"].tolist() == list(range(rows))
    assert block.texts["response"].pieces() == [one.body for one in expected]
    assert block.texts["custom_id"].pieces() == [one.custom_id for one in expected]
    assert block.texts["token_ids"].pieces() == [one.run.token_ids for one in expected if one.run]
    for name, values in {
        "line": [one.line for one in expected],
        "status": [one.status for one in expected],
        "outcome": [int(one.status != 200) for one in expected],
        "prompt_tokens": list(range(rows)),
        "completion_tokens": [2] * rows,
        "cached_tokens": [3] * rows,
        "time/ended": [row + 0.5 for row in range(rows)],
    }.items():
        assert results.column(name).tolist() == values, name
    summary = results.summary()
    assert (summary.ok, summary.failed) == (rows - len(range(7, rows, 100)), len(range(7, rows, 100)))
    results.close()


def roll_for_ever(parts: Parts, plan: BatchPlan, output: Path) -> None:
    try:
        while True:
            Roller(parts, plan, most_rows=100).roll(everything=True)
            write_results(output, parts, plan)
    finally:
        os._exit(1)


@pytest.mark.case("B54")
def test_a_roller_killed_at_twenty_random_points_loses_and_repeats_nothing(tmp_path: Path) -> None:
    parts, plan = make(tmp_path)
    output = tmp_path / "o.h5"
    rng = random.Random(4)
    before: dict[int, bytes] = {}
    rolled = 0
    for _ in range(20):
        child = os.fork()
        if child == 0:
            roll_for_ever(parts, plan, output)
        goal, patience = len(numbers(parts.segments)) + rng.randrange(3), 100
        while len(numbers(parts.segments)) < min(goal, ROWS // 120) and (patience := patience - 1):
            time.sleep(0.02)
        time.sleep(rng.random() * 0.06)
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        for number in numbers(parts.segments):  # whole, and never touched again
            data = (parts.segments / f"{number:06d}.h5").read_bytes()
            if number not in before:
                Segment(parts.segments / f"{number:06d}.h5", plan.batch, number).verify()
            assert before.setdefault(number, data) == data
        now = Roller(parts, plan).rolled
        assert now >= rolled
        rolled = now
    with Gathered(parts, plan) as gathered:
        assert gathered.missing == 0
    Roller(parts, plan, most_rows=100).roll(everything=True)
    write_results(output, parts, plan)
    check(output)
    assert list(parts.segments.glob(".*")) == []


def test_segments_hold_each_row_once_and_only_full_ones_are_written(tmp_path: Path) -> None:
    parts, plan = make(tmp_path)
    roller = Roller(parts, plan, most_rows=500)
    assert roller.roll() == 1020
    assert roller.roll() == 0
    assert roller.roll(everything=True) == 180
    assert Roller(parts, plan).rolled == ROWS
    paths = {number: parts.segments / f"{number:06d}.h5" for number in numbers(parts.segments)}
    rows = [row for n, path in paths.items() for row in Segment(path, plan.batch, n).rows.tolist()]
    assert sorted(rows) == list(range(ROWS))
    assert (parts.segments / "000001.h5").stat().st_mode & 0o777 == 0o600


def test_results_do_not_depend_on_how_much_was_rolled(tmp_path: Path) -> None:
    parts, plan = make(tmp_path)
    write_results(tmp_path / "none.h5", parts, plan)
    Roller(parts, plan, most_rows=500).roll()
    write_results(tmp_path / "some.h5", parts, plan)
    Roller(parts, plan, most_rows=500).roll(everything=True)
    write_results(tmp_path / "all.h5", parts, plan)
    for name in ("none", "some", "all"):
        check(tmp_path / f"{name}.h5")


def test_results_wait_for_every_row(tmp_path: Path) -> None:
    parts, plan = make(tmp_path, commit=1000)
    with pytest.raises(BatchError, match="200 of 1200 rows are not done"):
        write_results(tmp_path / "o.h5", parts, plan)
    assert not (tmp_path / "o.h5").exists()


def test_a_segment_never_replaces_another(tmp_path: Path) -> None:
    parts, plan = make(tmp_path)
    old, new = Roller(parts, plan), Roller(parts, plan)
    new.roll(everything=True)
    data = (parts.segments / "000001.h5").read_bytes()
    with pytest.raises(BatchError, match="exists already"):
        old.roll(everything=True)
    assert (parts.segments / "000001.h5").read_bytes() == data


def test_a_committed_record_that_is_damaged_is_reported_never_skipped(tmp_path: Path) -> None:
    parts, plan = make(tmp_path)
    path = parts.journal_file("a-0-1")
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)
    with pytest.raises(BatchError, match="is damaged at byte"):
        Roller(parts, plan).roll(everything=True)


def test_columns_are_plain_arrays(tmp_path: Path) -> None:
    parts, plan = make(tmp_path, rows=20)
    write_results(tmp_path / "o.h5", parts, plan)
    with h5py.File(tmp_path / "o.h5") as file:
        offsets = file["custom_id/offsets"][:]
        assert file["custom_id/data"][offsets[4] : offsets[5]].tobytes() == b"id\x00\xed\xa0\x804"
        assert file["status"].dtype.str == "<u2"
