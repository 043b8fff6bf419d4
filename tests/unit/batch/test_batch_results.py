"""The results file tells everything about each row, to any reader of HDF5, and counts agree everywhere."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import shutil
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pyarrow.parquet
import pytest

from exahpc.batch.export import export
from exahpc.batch.failures import failures
from exahpc.batch.gather import Gathered
from exahpc.batch.inputs.options import find_inputs
from exahpc.batch.results import Results, write_results
from exahpc.batch.retries import failed_requests, write_failed_requests
from exahpc.batch.schema import COLUMNS, RAGGED
from exahpc.batch.segments import Roller
from exahpc.batch.source import index_inputs
from exahpc.errors import BatchError
from tests.unit.batch.batches import answer, begin, commit, error, line

NAMES = ["r0", "r1", "r2", "r3"]


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """Results of four rows: two answers, a failure, and one that is bad in the input."""
    lines = [line("r0"), line("r1", logprobs=0), line("r2"), '{"custom_id": "r3"}']
    parts, plan = begin(tmp_path, lines, skip_invalid=True)
    positions = {int(row): at for at, row in enumerate(parts.rows_of(np.arange(4)))}
    rated = {"tokens": [" a", "b"], "token_logprobs": [None, -0.5]}
    records = [
        answer(positions[1], "a\x00\ud800", [9, 8], row=1, logprobs=rated, finish_reason="length"),
        answer(positions[0], "twó", [70_000], row=0),
        error(positions[2], "too hot", row=2),
    ]
    commit(parts, records)
    write_results(tmp_path / "o.h5", parts, plan, node_hours=1.5)
    return tmp_path / "o.h5"


def test_plain_h5py_reads_everything_about_a_row(made: Path) -> None:
    with h5py.File(made) as file:

        def texts(name: str) -> list[bytes]:
            offsets = file[f"{name}/offsets"][:]
            return [file[f"{name}/data"][offsets[i] : offsets[i + 1]].tobytes() for i in range(4)]

        assert file["row"][:].tolist() == [0, 1, 2, 3]
        assert file["outcome"][:].tolist() == [0, 0, 1, 2]
        assert h5py.check_enum_dtype(file["outcome"].dtype) == {"ok": 0, "failed": 1, "skipped": 2}
        assert file["finish_reason"][:].tolist() == [1, 2, 0, 0]
        assert texts("text") == ["twó".encode(), b"a\x00\xed\xa0\x80", b"", b""]
        ids, cuts = file["token_ids/data"][:].tolist(), file["token_ids/offsets"][:].tolist()
        assert (ids, cuts) == ([70_000, 9, 8], [0, 1, 3, 3, 3])
        values = file["logprobs/data"][:].tolist()
        assert math.isnan(values[0])
        assert values[1:] == [-0.5]
        assert file["logprobs/offsets"][:].tolist() == [0, 0, 2, 2, 2]
        assert json.loads(texts("response")[2])["error"]["message"] == "too hot"
        assert file["prompt_tokens"][:].tolist() == [7, 7, 0, 0]
        assert file["cached_tokens"][:].tolist() == [3, 3, 0, 0]
        times = [file[f"time/{name}"][1] for name in ("queued", "started", "first_token", "ended")]
        assert times == [100.0, 101.0, 102.5, 104.0]
        assert math.isnan(file["time/started"][3])
        which = file["replica"][0]
        table = {name: file[f"replicas/{name}"][which] for name in file["replicas"]}
        assert table == {"agent": b"gpu-3", "slot": 2, "incarnation": 5, "node": b"n7", "version": b"v1"}
        assert file["inputs/path"][file["file"][1]].decode().endswith("in.jsonl")
        counts = {name: file.attrs[name] for name in ("rows", "missing", "ok", "failed", "skipped", "node_hours")}
        assert counts == {"rows": 4, "missing": 0, "ok": 2, "failed": 2, "skipped": 1, "node_hours": 1.5}
        assert file["time/ended"].attrs["unit"] == "s"


def test_every_dataset_says_what_it_is_and_stands_in_the_reference(made: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/reference/results.md").read_text()
    with h5py.File(made) as file:
        found: list[str] = []
        file.visititems(lambda name, what: found.append(name) if isinstance(what, h5py.Dataset) else None)
        for name in found:
            assert f"`{name}`" in page or f"`{name.rpartition('/')[0]}`" in page, name
        for name in (*COLUMNS, *(f"{name}/data" for name in RAGGED)):
            assert file[name].attrs["about"]
        for name in file.attrs:
            assert f"`{name}`" in page, name


@pytest.mark.skipif(shutil.which("h5dump") is None, reason="h5dump is not installed")
def test_h5dump_shows_texts_and_outcomes(made: Path) -> None:
    def dump(*options: str) -> str:
        return subprocess.run(["h5dump", *options, str(made)], capture_output=True, text=True, check=True).stdout

    assert '"tw' in dump("-r", "-d", "/text/data")
    assert "ok, ok, failed, skipped" in dump("-d", "/outcome")


def test_counts_agree_in_file_summary_export_and_list_of_errors(made: Path, tmp_path: Path) -> None:
    results = Results(made)
    summary = results.summary()
    results.close()
    exported = export(made, tmp_path / "o.jsonl")
    assert (summary.total, summary.ok, summary.failed, summary.skipped) == (4, 2, 2, 1)
    assert (exported.total, exported.ok, exported.failed, exported.skipped) == (4, 2, 2, 1)
    assert summary.exit_code == 3
    lines = [json.loads(one) for one in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert [one["error"] is None for one in lines] == [True, True, False, False]
    assert [(one.row, one.skipped) for one in failures(made)] == [(2, False), (3, True)]


def test_failures_tell_file_line_and_reason_from_results_and_from_parts_alike(made: Path, tmp_path: Path) -> None:
    found = list(failures(made))
    assert list(failures(tmp_path / "o.h5.parts")) == found
    hot, bad = found
    assert (hot.file, hot.line, hot.custom_id, hot.status, hot.code, hot.message) == (
        str(tmp_path / "in.jsonl"), 3, "r2", 400, "c", "too hot",
    )  # fmt: skip
    assert (bad.line, bad.code) == (4, "bad_line")


def test_the_requests_of_failed_rows_are_an_input_again_even_without_the_first_one(
    made: Path, tmp_path: Path
) -> None:
    from_parts = list(failed_requests(tmp_path / "o.h5.parts"))
    (tmp_path / "in.jsonl").unlink()
    assert list(failed_requests(made)) == from_parts
    assert write_failed_requests(made, tmp_path / "again.jsonl") == 1
    assert json.loads((tmp_path / "again.jsonl").read_text()) == json.loads(line("r2"))
    parts = type(begin(tmp_path, [line("x")])[0])(tmp_path / "again.parts")
    parts.create()
    assert index_inputs(find_inputs([tmp_path / "again.jsonl"]), parts, "b2", model="m").rows == 1


def test_requests_that_cannot_be_had_any_more_are_missed_not_left_out(tmp_path: Path) -> None:
    parts, plan = begin(tmp_path, [line("r0")])
    commit(parts, [error(0, "x")])
    (tmp_path / "in.jsonl").unlink()
    write_results(tmp_path / "o.h5", parts, plan)
    with pytest.raises(BatchError, match=r"keeps the requests of 0 of 1 failed rows.*run the input again"):
        list(failed_requests(tmp_path / "o.h5"))
    with pytest.raises(BatchError, match="changed or removed"):
        list(failed_requests(parts.path))


def test_a_table_has_a_row_for_each_row(made: Path, tmp_path: Path) -> None:
    export(made, tmp_path / "o.parquet", form="parquet")
    export(made, tmp_path / "o.csv", form="csv")
    rows = pyarrow.parquet.read_table(tmp_path / "o.parquet").to_pylist()
    assert rows[0] == {"row": 0, "custom_id": "r0", "outcome": "ok", "text": "twó", "error": None}
    assert rows[1]["text"] == "a\x00�"
    assert (rows[2]["text"], rows[2]["error"], rows[3]["outcome"]) == (None, "too hot", "skipped")
    data = (tmp_path / "o.csv").read_text().replace("\x00", "")
    assert [row[:3] for row in csv.reader(io.StringIO(data))][1:] == [
        ["0", "r0", "ok"], ["1", "r1", "ok"], ["2", "r2", "failed"], ["3", "r3", "skipped"],
    ]  # fmt: skip


def test_texts_alone_come_out_unchanged(made: Path, tmp_path: Path) -> None:
    export(made, tmp_path / "t.jsonl", form="text")
    export(tmp_path / "o.h5.parts", tmp_path / "p.jsonl", form="text")
    assert (tmp_path / "t.jsonl").read_bytes() == (tmp_path / "p.jsonl").read_bytes()
    lines = [json.loads(one) for one in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert [one["text"] for one in lines] == ["twó", "a\x00\ud800", None, None]
    assert lines[2]["error"]["message"] == "too hot"


def test_positions_become_rows_in_every_output(tmp_path: Path) -> None:
    parts, plan = begin(tmp_path, [line(name) for name in NAMES])
    np.save(parts.order, np.array([2, 0, 3, 1], "<u4"))
    commit(parts, [answer(at, f"at {at}") for at in range(4)])
    Roller(parts, plan).roll(everything=True)
    write_results(tmp_path / "o.h5", parts, plan)
    export(tmp_path / "o.h5", tmp_path / "t.jsonl", form="text")
    lines = [json.loads(one) for one in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert [one["text"] for one in lines] == ["at 1", "at 3", "at 0", "at 2"]


def test_a_partial_file_holds_what_is_done_and_says_what_is_missing(tmp_path: Path) -> None:
    parts, plan = begin(tmp_path, [line(name) for name in NAMES])
    commit(parts, [answer(3, "d"), error(1, "x")])
    summary = write_results(tmp_path / "part.h5", parts, plan, partial=True)
    assert (summary.total, summary.ok, summary.failed) == (2, 1, 1)
    with h5py.File(tmp_path / "part.h5") as file:
        assert file["row"][:].tolist() == [1, 3]
        assert file.attrs["missing"] == 2


def test_blocks_are_in_order_and_complete_however_large_texts_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exahpc.batch.gather.BLOCK_ROWS", 7)
    monkeypatch.setattr("exahpc.batch.gather.BLOCK_BYTES", 2000)
    rows = 60
    parts, plan = begin(tmp_path, [line(f"r{i}") for i in range(rows)])
    for begun in range(6):
        commit(parts, [answer(at, "x" * (at**2 % 900)) for at in range(begun, rows, 6)])
        Roller(parts, plan, most_rows=5).roll(everything=True)
    with Gathered(parts, plan) as gathered:
        blocks = list(gathered.blocks())
    assert [row for block in blocks for row in block.numbers["row"].tolist()] == list(range(rows))
    assert max(len(block) for block in blocks) <= 7
    assert len(blocks) > rows // 7, "large texts make smaller blocks"
    texts = [
        json.loads(body)["choices"][0]["text"] for block in blocks for body in block.texts["response"].pieces()
    ]
    assert [len(text) for text in texts] == [at**2 % 900 for at in range(rows)]


def test_open_files_do_not_grow_with_segments(tmp_path: Path) -> None:
    rows = 16
    parts, plan = begin(tmp_path, [line(f"r{i}") for i in range(rows)])
    commit(parts, [answer(at, "x") for at in range(rows)], each=1)
    before = len(os.listdir("/proc/self/fd"))
    Roller(parts, plan, most_rows=1).roll()
    assert len(list(parts.segments.iterdir())) == rows
    with Gathered(parts, plan) as gathered:
        for _ in gathered.blocks():
            assert len(os.listdir("/proc/self/fd")) <= before + 2
    assert len(os.listdir("/proc/self/fd")) == before
