"""Exported lines are OpenAI's form; nobody can take a failure for a success."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exahpc.batch.columns import Block, Replicas, packed
from exahpc.batch.export import one_lines, openai_lines
from exahpc.batch.journal import Record
from exahpc.batch.results import Tally


def outcome(
    status: int = 200, body: bytes = b'{"id": "x"}', custom_id: bytes | None = b"r1", line: int = 5
) -> Block:
    record = Record(4, line, status, custom_id, body, 1, 2, 1, 1, "a-0")
    return packed([record], np.array([4]), Replicas())


def exported(made: Block) -> dict[str, Any]:
    (line,) = openai_lines(made, "batch_abc")
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    found: dict[str, Any] = json.loads(line)
    assert set(found) == {"id", "custom_id", "response", "error"}
    assert (found["response"] is None) != (found["error"] is None)
    return found


def test_a_success_has_its_body_and_no_error() -> None:
    found = exported(outcome())
    assert found["response"] == {"status_code": 200, "request_id": "row-4", "body": {"id": "x"}}
    assert found["id"] == "batch_req_abc_4"


@pytest.mark.case("B11")
@pytest.mark.parametrize("status", [400, 404, 500])
@pytest.mark.parametrize("body", [b'{"error": {"message": "too hot", "code": null}}', b"\xff", b"[]", b"[" * 9000])
def test_a_failure_has_no_response_whatever_its_body(status: int, body: bytes) -> None:
    found = exported(outcome(status, body))
    assert found["response"] is None
    assert found["error"]["status_code"] == status
    assert found["error"]["message"]
    assert found["error"]["code"]
    assert found["error"]["line"] == 5


@pytest.mark.case("B56")
def test_odd_characters_come_out_as_they_went_in() -> None:
    body = json.dumps({"text": "a\x00\ud800\U0001f469\u2028"}).encode()
    found = exported(outcome(200, body, "\ud800\x00é".encode("utf-8", "surrogatepass")))
    assert found["response"]["body"]["text"] == "a\x00\ud800\U0001f469\u2028"
    assert found["custom_id"] == "\ud800\x00é"


@pytest.mark.parametrize(("body", "read"), [(b'{"a":\r\n1}', {"a": 1}), (b"not json", "not json")])
def test_a_body_never_breaks_the_line(body: bytes, read: object) -> None:
    assert exported(outcome(200, body))["response"]["body"] == read


@pytest.mark.parametrize("bodies", [[b"[1", b"2]", b"3,4"], [b"{}", b"", b"{}"], [b'"a', b'b"', b"1,2"]])
def test_bodies_that_are_json_only_together_are_not_taken_for_json(bodies: list[bytes]) -> None:
    lines = one_lines(bodies)
    assert [json.loads(one) for one in lines] == [
        json.loads(body) if body == b"{}" else body.decode() for body in bodies
    ]


def test_the_commonest_error_is_counted_apart_from_its_line() -> None:
    tally = Tally()
    tally.add(outcome(400, b'{"error": {"message": "once"}}'))
    for line in (7, 8):
        body = b'{"error": {"message": "line %d: bad"}}' % line
        tally.add(outcome(400, body, line=line))
    summary = tally.summary(Path("o.h5"))
    assert summary.commonest_error == "2 times: bad"
    assert (summary.total, summary.ok, summary.failed, summary.skipped) == (3, 0, 3, 0)
