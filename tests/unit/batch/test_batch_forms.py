"""Whatever form prompts have: each becomes the request that the template says, and every fault is told where it
lies."""

from __future__ import annotations

import csv
import gzip
import json
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from exahpc.batch.inputs.options import InputOptions, Template, find_inputs
from exahpc.batch.inputs.reader import Read, RowReader
from exahpc.batch.lines import Row
from exahpc.batch.plan import BatchPlan, Parts
from exahpc.batch.source import index_inputs
from exahpc.errors import BatchError

PROMPTS = ["one", "zwei\u2028\x85 drei", "NUL \x00 in it", 'quotes " and, commas', "vier\U0001f600"]


def index(
    tmp_path: Path, *paths: Path, options: InputOptions | None = None, **more: Any
) -> tuple[BatchPlan, Parts]:
    parts = Parts.of(tmp_path / "out.h5")
    parts.create()
    inputs = find_inputs(paths, options or InputOptions())
    plan = index_inputs(inputs, parts, "b1", model="m", **more)
    parts.save(plan)
    return plan, parts


def read(plan: BatchPlan, parts: Parts) -> list[Read]:
    """All good rows in input order."""
    reader = RowReader(parts, plan)
    found: list[Read] = []
    while len(found) < plan.rows - plan.bad:
        found += reader.read(plan.bad + len(found), plan.rows, 1 << 30)
    reader.close()
    return sorted(found, key=lambda read: read.row)


def bodies(plan: BatchPlan, parts: Parts) -> list[dict[str, Any]]:
    found = [read.found for read in read(plan, parts)]
    assert all(isinstance(row, Row) for row in found), found
    return [json.loads(row.body) for row in found if isinstance(row, Row)]


def contents(plan: BatchPlan, parts: Parts) -> list[Any]:
    return [body["messages"][-1]["content"] for body in bodies(plan, parts)]


def faults(parts: Parts) -> list[tuple[int, str]]:
    return [(f["line"], f["reason"]) for f in map(json.loads, parts.bad.read_text().splitlines())]


def request(custom_id: str, content: str = "hi") -> bytes:
    body = {"model": "m", "messages": [{"role": "user", "content": content}]}
    line = {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(line).encode()


def as_text(path: Path) -> None:
    path.write_bytes("\n".join(PROMPTS).encode())


def as_jsonl(path: Path) -> None:
    path.write_text("\n".join(json.dumps({"prompt": p, "more": [1]}) for p in PROMPTS))


def as_array(path: Path) -> None:
    path.write_text(json.dumps([{"prompt": p, "x": {"y": ["]", "\\"]}} for p in PROMPTS], indent=1))


def as_csv(path: Path) -> None:
    with open(path, "w", newline="") as file:
        csv.writer(file, "excel-tab" if path.suffix == ".tsv" else "excel").writerows(
            [["id", "prompt"], *([i, p] for i, p in enumerate(PROMPTS))]
        )


def as_parquet(path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"n": range(len(PROMPTS)), "prompt": PROMPTS}), path)


def as_hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["numbers"] = np.arange(3)
        file["g/prompts"] = [p.replace("\x00", "0") for p in PROMPTS]


def zstd(data: bytes) -> bytes:
    return bytes(pyarrow.Codec("zstd").compress(data, asbytes=True))


def packed(write: Callable[[Path], None], how: str) -> Callable[[Path], None]:
    def write_packed(path: Path) -> None:
        plain = path.with_suffix("")
        write(plain)
        data = plain.read_bytes()
        half = len(data) // 2
        if how == "gzip":
            path.write_bytes(gzip.compress(data[:half]) + gzip.compress(data[half:]))
        else:
            path.write_bytes(zstd(data[:half]) + zstd(data[half:]))

    return write_packed


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("p.txt", as_text),
        ("p", as_text),
        ("p.jsonl", as_jsonl),
        ("p.json", as_jsonl),
        ("p.json", as_array),
        ("p.csv", as_csv),
        ("p.tsv", as_csv),
        ("p.parquet", as_parquet),
        ("p.h5", as_hdf5),
        ("p.txt.gz", packed(as_text, "gzip")),
        ("p.jsonl.zst", packed(as_jsonl, "zstd")),
        ("p.csv.gz", packed(as_csv, "gzip")),
        ("p.json.zst", packed(as_array, "zstd")),
    ],
)
def test_prompts_of_any_form_become_the_same_requests(
    tmp_path: Path, name: str, write: Callable[[Path], None]
) -> None:
    write(tmp_path / name)
    template = Template(system="be brief", max_tokens=7, body={"temperature": 0})
    plan, parts = index(tmp_path, tmp_path / name, options=InputOptions(template=template))
    wanted = [p.replace("\x00", "0") if name == "p.h5" else p for p in PROMPTS]
    assert bodies(plan, parts) == [
        {
            "temperature": 0,
            "model": "m",
            "max_tokens": 7,
            "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": prompt}],
        }
        for prompt in wanted
    ]
    found = [r.found for r in read(plan, parts)]
    assert [row.custom_id for row in found] == [f"row-{i}" for i in range(len(PROMPTS))]


def test_a_completion_template_goes_on_from_the_text(tmp_path: Path) -> None:
    as_text(tmp_path / "p.txt")
    options = InputOptions(template=Template("completion", body={"seed": 3}))
    plan, parts = index(tmp_path, tmp_path / "p.txt", options=options)
    assert [body["prompt"] for body in bodies(plan, parts)] == PROMPTS
    assert {(r.found.kind, r.found.seed) for r in read(plan, parts) if isinstance(r.found, Row)} == {
        ("completion", 3)
    }


@pytest.mark.parametrize("ragged", [True, False])
def test_token_ids_of_hdf5_become_completions(tmp_path: Path, ragged: bool) -> None:
    ids = [[1, 2, 3], [4, 5, 6]] if not ragged else [[1], [2, 3, 4], [5, 6]]
    with h5py.File(tmp_path / "ids.h5", "w") as file:
        if ragged:
            made = file.create_dataset("ids", (3,), h5py.vlen_dtype(np.int32))
            for i, row in enumerate(ids):
                made[i] = row
        else:
            file["ids"] = np.array(ids, np.uint16)
    plan, parts = index(tmp_path, tmp_path / "ids.h5")
    assert [body["prompt"] for body in bodies(plan, parts)] == ids


def test_a_column_of_messages_becomes_chats(tmp_path: Path) -> None:
    said = [[{"role": "user", "content": "a"}], [{"role": "user", "content": "b", "name": "n"}]]
    pyarrow.parquet.write_table(pyarrow.table({"talk": said}), tmp_path / "p.parquet")
    plan, parts = index(tmp_path, tmp_path / "p.parquet")
    assert [body["messages"] for body in bodies(plan, parts)] == said


def test_the_named_column_field_or_dataset_is_taken(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("q,prompt\nright,wrong\n")
    (tmp_path / "b.jsonl").write_text('{"q": "right", "prompt": "wrong"}\n')
    pyarrow.parquet.write_table(pyarrow.table({"q": ["right"], "prompt": ["wrong"]}), tmp_path / "c.parquet")
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file["prompt"], file["deep/q"] = ["wrong"], ["right"]
    paths = sorted(tmp_path.glob("?.*"))
    plan, parts = index(tmp_path, *paths, options=InputOptions(column="q", dataset="deep/q"))
    assert contents(plan, parts) == ["right"] * 4


@pytest.mark.parametrize(
    ("name", "write", "words"),
    [
        (
            "a.csv",
            lambda p: p.write_text("a,b\n1,2\n"),
            "has no column 'prompt': name one of 'a', 'b' by --column",
        ),
        ("a.parquet", lambda p: p.write_bytes(b"PAR1 and nothing else"), "cannot be read as Parquet"),
        ("a.h5", lambda p: p.write_bytes(b"nothing"), "cannot be read as HDF5"),
        ("a.h5", lambda p: h5py.File(p, "w").close(), "no dataset of prompts"),
        ("a.txt.gz", lambda p: p.write_bytes(gzip.compress(b"x" * 99)[:-9]), "is damaged"),
        ("a.txt.gz", lambda p: p.write_bytes(gzip.compress(b"x") + b"junk"), "is damaged"),
        (
            "a.txt.zst",
            lambda p: p.write_bytes(zstd(b"x" * 99)[:-9]),
            "damaged",
        ),
        ("a.json", lambda p: p.write_text('["a", "b"'), "has no end"),
        ("a.json", lambda p: p.write_text('["a"] 1'), "more than one JSON value"),
    ],
)
def test_a_file_that_cannot_be_read_as_a_whole_is_named(
    tmp_path: Path, name: str, write: Callable[[Path], Any], words: str
) -> None:
    write(tmp_path / name)
    with pytest.raises(BatchError, match=words):
        index(tmp_path, tmp_path / name)


@pytest.mark.parametrize(
    ("name", "data", "bad", "good"),
    [
        ("a.txt", b"one\n\nt\xffo\nthree", {3: "not UTF-8: byte 0xFF at column 2"}, ["one", "three"]),
        (
            "a.csv",
            b'prompt,n\n"a\nb",1\nc,2,3\n,4\nx\xff,5\nd\xe2\x80\xa8,6\n"open,7\n',
            {4: "3 cells under", 5: "prompt is empty", 6: "not UTF-8", 8: "not CSV"},
            ["a\nb", "d\u2028"],
        ),
        (
            "a.jsonl",
            b'{"prompt": "a"}\n{"other": 1}\n{"prompt": 5}\n{"prompt": null}\nnonsense\n{"prompt": "\\ud800"}\n'
            b'"str"\n'
            b'{"prompt": ""}\n{"prompt": "\xff"}',
            {
                2: "no field 'prompt'",
                3: "the prompt is 5",
                4: "missing",
                5: "not JSON",
                8: "empty",
                9: "not UTF-8",
            },
            ["a", "\ud800", "str"],
        ),
        (
            "a.json",
            b'[{"prompt": "a"}, , {"prompt": [1, -1]}, {"b": 1}]',
            {2: "JSON", 3: "item 1", 4: "no field"},
            ["a"],
        ),
    ],
)
def test_a_fault_is_told_with_its_line_and_the_other_rows_go_on(
    tmp_path: Path, name: str, data: bytes, bad: dict[int, str], good: list[str]
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(BatchError, match=f"{len(bad)} of {len(bad) + len(good)} rows"):
        index(tmp_path, tmp_path / name)
    plan, parts = index(tmp_path, tmp_path / name, skip_invalid=True)
    assert contents(plan, parts) == good
    found = dict(faults(parts))
    assert found.keys() == bad.keys()
    assert all(words in found[line] for line, words in bad.items()), found


def test_text_of_parquet_that_is_no_utf8_is_a_fault_of_its_row(tmp_path: Path) -> None:
    made = pyarrow.array([b"good", b"\xff", None, b""]).cast(pyarrow.binary())
    text = pyarrow.Array.from_buffers(pyarrow.string(), 4, made.buffers())
    pyarrow.parquet.write_table(pyarrow.table({"prompt": text}), tmp_path / "p.parquet")
    plan, parts = index(tmp_path, tmp_path / "p.parquet", skip_invalid=True)
    assert contents(plan, parts) == ["good"]
    assert [line for line, _ in faults(parts)] == [2, 3, 4]


@pytest.mark.parametrize(
    "column",
    [
        pyarrow.array([1, 2], pyarrow.timestamp("ns")),
        pyarrow.array([1, 2], pyarrow.duration("ns")),
        pyarrow.array([[1], [2]], pyarrow.list_(pyarrow.timestamp("ns"))),
        pyarrow.array([[{"role": 1}]], pyarrow.list_(pyarrow.struct({"role": pyarrow.time64("ns")}))),
        pyarrow.array([[("a", 1)]], pyarrow.map_(pyarrow.string(), pyarrow.int64())),
        pyarrow.array([[[1]]]),
        pyarrow.array([1.5]),
        pyarrow.array([True]),
    ],
    ids=lambda column: str(column.type),
)
def test_a_parquet_column_that_cannot_hold_prompts_is_named_with_its_type(
    tmp_path: Path, column: pyarrow.Array
) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"prompt": column}), tmp_path / "p.parquet")
    with pytest.raises(BatchError, match=r"column 'prompt' .* has type "):
        index(tmp_path, tmp_path / "p.parquet")


@pytest.mark.parametrize(
    "column",
    [
        pyarrow.array(["a", "b", "a"]).dictionary_encode(),
        pyarrow.array(["a", "b", "a"], pyarrow.string_view()),
        pyarrow.array([b"a", b"b", b"a"], pyarrow.binary(1)),
        pyarrow.array([[{"role": "user", "content": text}] for text in "aba"]),
    ],
    ids=lambda column: str(column.type),
)
def test_a_parquet_column_may_store_prompts_as_it_likes(tmp_path: Path, column: pyarrow.Array) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"prompt": column, "other": range(3)}), tmp_path / "p.parquet")
    assert contents(*index(tmp_path, tmp_path / "p.parquet")) == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("p.parquet", as_parquet),
        ("p.h5", as_hdf5),
        ("p.txt.gz", lambda p: p.write_bytes(gzip.compress(b"prompt\n" * 99))),
        ("p.txt.zst", lambda p: p.write_bytes(zstd(b"prompt\n" * 99))),
    ],
)
def test_a_file_is_read_or_named_wherever_it_is_damaged(
    tmp_path: Path, name: str, write: Callable[[Path], Any]
) -> None:
    write(tmp_path / name)
    data, path, told = (tmp_path / name).read_bytes(), tmp_path / name, list[str]()
    for at in range(8, len(data), max(1, len(data) // 24)):
        path.write_bytes(data[:at] + b"\xaa" * 24 + data[at + 24 :])
        try:
            index(tmp_path, path, skip_invalid=True)
        except BatchError as error:
            told.append(str(error))
        shutil.rmtree(tmp_path / "out.h5.parts")
    assert told
    assert all(str(path) in text for text in told)


def test_what_unpacks_to_more_than_there_is_room_for_keeps_no_room(tmp_path: Path) -> None:
    (tmp_path / "bomb.jsonl.gz").write_bytes(gzip.compress(bytes(8 << 20)))
    room = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, room[1]))  # Python ignores SIGXFSZ: EFBIG
    try:
        with pytest.raises(OSError, match="too large"):
            index(tmp_path, tmp_path / "bomb.jsonl.gz")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, room)
    assert not list((tmp_path / "out.h5.parts" / "rows").iterdir())


@pytest.mark.parametrize("spoilt", [b'"x"', b"null", b"[1, 2]", b'{"custom_id":', b"\xff", b"[" * 5000, b""])
@pytest.mark.parametrize("prompts", [True, False])
def test_a_spoilt_first_line_does_not_decide_how_the_others_are_read(
    tmp_path: Path, spoilt: bytes, prompts: bool
) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
    asked = {"custom_id": "q", "method": "POST", "url": "/v1/chat/completions", "body": body}
    good = json.dumps({"prompt": "a"} if prompts else asked).encode()
    (tmp_path / "in.jsonl").write_bytes(spoilt + b"\n" + good + b"\n")
    plan, parts = index(tmp_path, tmp_path / "in.jsonl", skip_invalid=True)
    assert bodies(plan, parts)[-1]["messages"][-1]["content"] == "a"


def test_many_files_are_one_batch_and_faults_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_bytes(request("a") + b"\n" + request("b"))
    (tmp_path / "2.txt").write_bytes(b"plain")
    with gzip.open(tmp_path / "3.jsonl.gz", "wb") as file:
        file.write(request("c") + b"\n" + request("a"))
    with pytest.raises(BatchError) as caught:
        index(tmp_path, tmp_path / "[0-9].*")
    first, again = tmp_path / "1.jsonl", tmp_path / "3.jsonl.gz"
    assert f"{again} line 2: custom_id 'a' was used before, on line 1 of {first}\n" in str(caught.value)
    plan, parts = index(tmp_path, tmp_path / "[0-9].*", skip_invalid=True)
    found = [r.found.custom_id for r in read(plan, parts)]
    assert found == ["a", "b", "row-2", "c"]
    assert plan.files_of([0, 1, 2, 3, 4]).tolist() == [0, 0, 1, 2, 2]


def test_a_made_name_that_a_request_has_too_is_told(tmp_path: Path) -> None:
    (tmp_path / "1.txt").write_bytes(b"plain")
    (tmp_path / "2.jsonl").write_bytes(request("row-0"))
    with pytest.raises(BatchError, match=r"2\.jsonl line 1: custom_id 'row-0' was used before"):
        index(tmp_path, tmp_path / "1.txt", tmp_path / "2.jsonl")


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (Template(body={"temperature": 9}), "temperature: 9 is out of range"),
        (Template(body={"messages": []}), "'messages' is set by exahpc"),
        (Template("completion", system="x"), "a completion has no system message"),
        (Template(body={"max_token": 3}), "did you mean 'max_tokens'"),
    ],
)
def test_a_template_by_which_nothing_can_be_run_is_refused(tmp_path: Path, template: Template, words: str) -> None:
    as_text(tmp_path / "p.txt")
    with pytest.raises(BatchError, match=words):
        index(tmp_path, tmp_path / "p.txt", options=InputOptions(template=template))
