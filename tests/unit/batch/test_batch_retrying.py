"""Failed rows are run again, and their answers take the place of their errors; nothing else changes."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Any

import h5py
import pytest

from exahpc.batch.commits import Commit, CommitWriter
from exahpc.batch.export import export
from exahpc.batch.failures import failures
from exahpc.batch.journal import Record, Run, error_body
from exahpc.batch.resultsfile import Results
from exahpc.batch.retrying import Retrying
from exahpc.batch.run import Prepared, finish, prepare
from exahpc.batch.station import Station, Task
from exahpc.errors import BatchBusy, BatchError


def write(path: Path, rows: int) -> Path:
    lines = []
    for row in range(rows):
        body = {"model": "m", "prompt": f"prompt {row}"}
        lines.append(
            json.dumps({"custom_id": f"r{row}", "method": "POST", "url": "/v1/completions", "body": body})
        )
    path.write_text("\n".join(lines))
    return path


def answer_all(prepared: Prepared, failing: set[str], word: str, node: str) -> None:
    """As one agent and one broker would. failing: custom_ids whose rows fail."""
    writer = CommitWriter(prepared.parts.commits, 1, lambda event: None)
    station = Station(prepared.parts, prepared.plan.batch, "a-0")
    _, tasks = station.read(prepared.plan.bad, prepared.plan.rows, 2**20)
    good, bad, records = list[tuple[int, int]](), list[tuple[int, int]](), list[Record]()
    for task in tasks:
        assert isinstance(task, Task)
        assert task.custom_id is not None
        name = task.custom_id.decode()
        fails = name in failing
        choice = {"index": 0, "text": f"{word} {name}", "finish_reason": "stop"}
        body = error_body(f"{word}: no", code="x") if fails else json.dumps({"choices": [choice]}).encode()
        run = Run(0, 7, node, "", 1.0, 2.0, 3.0, 4.0, 0, b"\x01\x00\x00\x00")
        status = 500 if fails else 200
        records.append(Record(task.row, task.line, status, task.custom_id, body, 3, 1, 5, 1, "a-0", run))
        (bad if fails else good).append((task.row, task.row + 1))
    ((journal, start, end),) = station.write([records])
    station.close()
    writer.append([Commit(5, journal, start, end, good, bad)])
    writer.close()


def finished(folder: Path, rows: int, failing: set[str]) -> Path:
    prepared = prepare(write(folder / "in.jsonl", rows), folder / "out.h5")
    answer_all(prepared, failing, "first", "n1")
    finish(prepared, used=1.0)
    return folder / "out.h5"


def again(results: Path, failing: set[str]) -> Retrying:
    """Run the failed rows again."""
    retrying = Retrying(results)
    prepared = prepare(retrying.requests, retrying.answers)
    if prepared.summary is None:
        answer_all(prepared, failing, "second", "n2")
        finish(prepared, used=0.5)
    return retrying


def lines(results: Path, target: Path) -> list[dict[str, Any]]:
    export(results, target)
    return [json.loads(line) for line in target.read_text().splitlines()]


def texts(results: Path) -> list[str]:
    with h5py.File(results) as file:
        cuts, data = file["text/offsets"][:], file["text/data"][:].tobytes()
    return [data[a:b].decode() for a, b in itertools.pairwise(cuts)]


def test_answers_take_the_place_of_errors_and_counts_node_hours_and_replicas_follow(tmp_path: Path) -> None:
    results = finished(tmp_path, 7, {"r0", "r3", "r6"})
    with h5py.File(results) as file:
        before = {name: file[name][:].tolist() for name in ("row", "line", "file")}
    summary = again(results, {"r3"}).put_in()
    assert (summary.total, summary.ok, summary.failed, summary.node_hours) == (7, 6, 1, 1.5)
    assert texts(results) == ["second r0", "first r1", "first r2", "", "first r4", "first r5", "second r6"]
    told = lines(results, tmp_path / "out.jsonl")
    assert [line["custom_id"] for line in told] == [f"r{row}" for row in range(7)]
    assert told[3]["error"]["message"] == "second: no"
    with h5py.File(results) as file:
        assert {name: file[name][:].tolist() for name in before} == before
        nodes = file["replicas/node"].asstr()[:]
        assert [nodes[place] for place in file["replica"][:]] == ["n2", "n1", "n1", "n2", "n1", "n1", "n2"]
        assert file["inputs/path"].asstr()[:].tolist() == [str(tmp_path / "in.jsonl")]
    opened = Results(results)
    assert opened.summary() == summary
    opened.close()
    assert not (tmp_path / "out.h5.retry").exists()


def test_rows_that_failed_again_can_be_run_once_more_without_the_input(tmp_path: Path) -> None:
    results = finished(tmp_path, 5, {"r1", "r2"})
    (tmp_path / "in.jsonl").unlink()
    again(results, {"r2"}).put_in()
    assert [one.custom_id for one in failures(results)] == ["r2"]
    assert again(results, set()).put_in().failed == 0


def test_a_run_that_was_cut_off_anywhere_is_gone_on_with_and_putting_in_twice_changes_nothing(
    tmp_path: Path,
) -> None:
    results = finished(tmp_path, 5, {"r1", "r4"})
    Retrying(results)
    requests = (tmp_path / "out.h5.retry" / "requests.jsonl").read_bytes()
    assert requests.count(b"\n") == 2
    retrying = again(results, {"r4"})
    kept = shutil.copytree(retrying.folder, tmp_path / "kept")
    first = retrying.put_in()
    told = lines(results, tmp_path / "one.jsonl")
    shutil.copytree(kept, retrying.folder)  # as if the process had died before it could remove it
    second = again(results, {"r4"}).put_in()
    assert (second.ok, second.failed) == (first.ok, first.failed)
    assert lines(results, tmp_path / "two.jsonl") == told


def test_two_that_begin_at_the_same_time_share_one_folder_and_one_of_them_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = finished(tmp_path, 3, {"r1"})
    real = os.rename

    def late(source: Path, target: Path) -> None:
        shutil.copytree(source, target)  # what the other one did a moment before
        real(source, target)

    monkeypatch.setattr(os, "rename", late)
    second = Retrying(results)
    assert second.retry.rows == [1]
    prepared = prepare(second.requests, second.answers)
    with pytest.raises(BatchBusy):
        prepare(second.requests, second.answers)
    prepared.release()
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".tmp")] == []


def test_what_belongs_to_other_results_is_not_put_in(tmp_path: Path) -> None:
    results = finished(tmp_path, 3, {"r1"})
    Retrying(results)
    results.unlink()
    finished(tmp_path, 3, {"r1"})
    with pytest.raises(BatchError, match=r"out\.h5\.retry belongs to other results"):
        Retrying(results)


def test_without_failed_rows_there_is_nothing_to_run(tmp_path: Path) -> None:
    retrying = Retrying(finished(tmp_path, 3, set()))
    assert retrying.retry.rows == []
    retrying.drop()
    assert not retrying.folder.exists()
