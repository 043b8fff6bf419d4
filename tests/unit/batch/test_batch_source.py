"""Every bad line is named before anything runs; every good line is found where the index says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from exahpc.batch.inputs.options import find_inputs
from exahpc.batch.inputs.requests import RequestForm, parse_request
from exahpc.batch.journal import FrameReader, Record
from exahpc.batch.lines import LONGEST_LINE, Row
from exahpc.batch.plan import BAD, SOURCE, BatchPlan, Parts, same_inputs
from exahpc.batch.source import index_inputs
from exahpc.errors import BatchError


def line(custom_id: object = "r1", **changes: Any) -> bytes:
    made: dict[str, Any] = {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    }
    made.update(changes)
    return json.dumps({k: v for k, v in made.items() if v is not ...}).encode()


def index(tmp_path: Path, data: bytes, **options: Any) -> tuple[BatchPlan, Parts]:
    source = tmp_path / "in.jsonl"
    source.write_bytes(data)
    parts = Parts.of(tmp_path / "out.h5")
    parts.create()
    return index_inputs(find_inputs([source]), parts, "b1", **options), parts


def kinds(parts: Parts) -> list[int]:
    return [int(entry["kind"]) for entry in parts.load_index()]


def records(plan: BatchPlan, parts: Parts) -> dict[int, Record]:
    reader: FrameReader[Record] = FrameReader(parts.journal_file(SOURCE), Record)
    return {int(parts.rows_of(record.row)): record for _, _, record in reader.frames(end=plan.source_end)}


@pytest.mark.case("B07")
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("last", [True, False])
def test_bom_line_ends_blank_lines_and_a_missing_last_newline_change_nothing(
    tmp_path: Path, end: bytes, bom: bytes, last: bool
) -> None:
    lines = [line("a"), b"", line("b"), b"  \t", line("c")]
    plan, parts = index(tmp_path, bom + end.join(lines) + (end if last else b""))
    data = (tmp_path / "in.jsonl").read_bytes()
    found = [data[e["offset"] : e["offset"] + e["length"]] for e in parts.load_index()]
    assert found == [line("a"), line("b"), line("c")]
    assert [int(e["line"]) for e in parts.load_index()] == [1, 3, 5]
    assert (plan.rows, plan.bad) == (3, 0)


def test_all_bad_lines_are_named_at_once(tmp_path: Path) -> None:
    lines = [
        line("ok"),
        line("a", method=...),
        b'{"custom_id":',
        b"",
        b"[1,2,3]",
        b'"hello"',
        b"null",
        line("s", body="str"),
        b'{"custom_id": "\xff"}',
        line("u", url="/v1/embeddings"),
        line("g", method="GET"),
        line(7),
        line("n", body=...),
        line("st", body={"messages": [{"role": "user", "content": "a"}], "stream": True}),
        line("nm", body={"model": "m"}),
        b'{"x": NaN}',
        b"[" * 100_000,
        b'{"custom_id": "d", "x": ' + b"[" * 9000 + b"]" * 9000 + b"}",
        line("big", body={"messages": [{"role": "user", "content": "a"}], "seed": 2**63}),
        line("ok2"),
    ]
    with pytest.raises(BatchError) as caught:
        index(tmp_path, b"\n".join(lines))
    text = str(caught.value)
    for number, words in {
        2: "'method' is missing",
        3: "not JSON",
        5: "must be a JSON object, not an array",
        6: "not a string",
        7: "not null",
        8: "'body' must be a JSON object, not a string",
        9: "not UTF-8: byte 0xFF at column 16",
        10: "'url' must be one of",
        11: "'method' must be",
        12: "'custom_id' must be a string, not a number",
        13: "'body' is missing",
        14: "body.stream",
        15: "body.messages: missing",
        16: "NaN is not a JSON value",
        17: "nested too deeply",
        18: "nested too deeply",
        19: "body.seed",
    }.items():
        assert any(f"line {number}: " in row and words in row for row in text.splitlines()), (number, words, text)
    assert "17 of 19 rows" in text
    assert "line 1:" not in text
    assert "line 20:" not in text


@pytest.mark.case("B04", "B05", "B08")
@pytest.mark.parametrize(
    ("lines", "bad"),
    [
        ((line("a"), b"[1,2,3]", b'"hello"', b"null", b'{"custom_id":"x","body":"str"}', line("b")), {2, 3, 4, 5}),
        ((line("a"), line("x", method=...), b'{"custom_id":', b"", line("b")), {2, 3}),
        ((line("a"), line("x").replace(b"hi", b"\xff"), line("b")), {2}),
    ],
)
def test_lines_around_a_bad_one_are_read_and_each_bad_one_is_told_once(
    tmp_path: Path, lines: tuple[bytes, ...], bad: set[int]
) -> None:
    with pytest.raises(BatchError) as caught:
        index(tmp_path, b"\n".join(lines))
    assert {number for number in range(1, 9) if f"line {number}: " in str(caught.value)} == bad
    plan, parts = index(tmp_path, b"\n".join(lines), skip_invalid=True)
    assert {record.line for record in records(plan, parts).values()} == bad
    good = [entry for entry in parts.load_index() if entry["kind"] != BAD]
    assert [int(entry["line"]) for entry in good] == [1, len(lines)]


def test_skipped_bad_lines_become_error_records_with_their_line_number(tmp_path: Path) -> None:
    plan, parts = index(
        tmp_path, line("a") + b"\n[1]\n" + line("b") + b"\n" + line("x", url="/v2"), skip_invalid=True
    )
    assert kinds(parts) == [0, BAD, 0, BAD]
    found = records(plan, parts)
    assert sorted(found) == [1, 3]
    assert found[1].line == 2
    assert b"line 2" in found[1].body
    assert found[1].status == 400
    assert found[3].custom_id == b"x"
    assert plan.bad == 2


@pytest.mark.case("B01")
@pytest.mark.parametrize(("rows", "first", "again"), [(2, 1, 2), (100, 7, 93)])
def test_a_repeated_custom_id_is_rejected_naming_both_lines(
    tmp_path: Path, rows: int, first: int, again: int
) -> None:
    lines = [
        line(f"r{i + 1}", body={"model": "m", "messages": [{"role": "user", "content": f"say {i}"}]})
        for i in range(rows)
    ]
    lines[again - 1] = line(f"r{first}")
    with pytest.raises(
        BatchError, match=f"line {again}: custom_id 'r{first}' was used before, on line {first}\\n"
    ):
        index(tmp_path, b"\n".join(lines))
    plan, parts = index(tmp_path, b"\n".join(lines), skip_invalid=True)
    assert [row for row, kind in enumerate(kinds(parts)) if kind == BAD] == [again - 1]
    assert list(records(plan, parts)) == [again - 1]


def test_a_row_is_rejected_once_even_when_it_is_bad_in_two_ways(tmp_path: Path) -> None:
    plan, parts = index(tmp_path, line("a") + b"\n" + line("a", method=...) + b"\n" + line("a"), skip_invalid=True)
    assert plan.bad == 2
    assert sorted(records(plan, parts)) == [1, 2]


def test_a_model_that_is_not_served_is_the_commonest_error_of_all_its_rows(tmp_path: Path) -> None:
    data = b"\n".join(line(f"r{i}") for i in range(9))
    with pytest.raises(
        BatchError, match=r"9 of 9 rows .*commonest, 9 times: body.model: 'm' is not served here.*'other'"
    ):
        index(tmp_path, data, model="other")
    assert index(tmp_path, data, model="m")[0].bad == 0


@pytest.mark.case("B56")
def test_nul_and_lone_surrogates_are_good_lines_and_keep_their_custom_id(tmp_path: Path) -> None:
    body = {"messages": [{"role": "user", "content": "a\x00b\ud800"}]}
    _, parts = index(tmp_path, line("\ud800\x00", body=body) + b"\n" + line("two"))
    assert kinds(parts) == [0, 0]
    found = parse_request(line("\ud800\x00", body=body))
    assert isinstance(found, Row)
    assert found.custom_id == "\ud800\x00"
    assert json.loads(found.body) == body


@pytest.mark.parametrize(("url", "field"), [("/v1/chat/completions", "messages"), ("/v1/completions", "prompt")])
def test_a_body_is_passed_on_byte_by_byte(url: str, field: str) -> None:
    body = f'{{"{field}" : ["\u00e9"],  "temperature": 1.50e0}}'
    found = parse_request(f'{{"custom_id":"a","method":"POST","url":"{url}","body":{body}}}'.encode())
    assert isinstance(found, Row)
    assert found.body == body.encode()
    null = f'{{"custom_id":"a","method":"POST","url":"{url}","body":{{"{field}": null}}}}'.encode()
    assert f"{field}: missing" in RequestForm(None).check([null], 0).flaws[0].reason


def test_an_over_long_line_is_one_bad_line(tmp_path: Path) -> None:
    long = b'{"custom_id": "' + b"\r" * (LONGEST_LINE + 5) + b'"}'
    _, parts = index(tmp_path, line("a") + b"\n" + long + b"\n" + line("b"), skip_invalid=True)
    assert kinds(parts) == [0, BAD, 0]


def test_an_empty_input_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BatchError, match="holds no rows"):
        index(tmp_path, b"\n\n")


def test_seeds_come_from_the_body_or_from_input_and_row(tmp_path: Path) -> None:
    plan, _ = index(tmp_path, line("a"))
    assert plan.seed(0) == plan.seed(0) != plan.seed(1)
    assert 0 <= plan.seed(0) < 2**63
    found = parse_request(line("a", body={"messages": [], "seed": 5}))
    assert isinstance(found, Row)
    assert found.seed == 5


def test_a_batch_refuses_another_input_but_not_a_touched_one(tmp_path: Path) -> None:
    plan, _ = index(tmp_path, line("a"))
    source = tmp_path / "in.jsonl"
    source.write_bytes(line("a"))  # same bytes, new time
    same_inputs(plan, find_inputs([source]))
    source.write_bytes(line("b"))
    with pytest.raises(BatchError, match="is not the file that this batch began with"):
        same_inputs(plan, find_inputs([source]))
