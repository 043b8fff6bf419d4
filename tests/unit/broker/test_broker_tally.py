"""What is told of a running batch: tokens, reasons, node-hours."""

from __future__ import annotations

from pathlib import Path

import pytest

from exahpc.batch import usage
from exahpc.batch.plan import Parts
from exahpc.batch.reasons import Reasons, reason_of
from exahpc.broker.tally import Tally
from exahpc.wire.messages import BatchStatus, LeaseProgress

STATUS = BatchStatus("b", "f", 10, 4, 1, 0, "running")


def told(tokens: int, *errors: tuple[str, int]) -> LeaseProgress:
    return LeaseProgress(
        1, "b", "j", 0, 1, 1, 0, False, prompt_tokens=2 * tokens, completion_tokens=tokens, errors=list(errors)
    )


def test_tokens_and_reasons_add_up_and_the_commonest_comes_first() -> None:
    tally = Tally(0.5, 10.0)
    tally.add(told(3, ("too long", 1)))
    tally.add(told(4, ("no room", 2)))
    tally.account(11.0)
    status = tally.told(STATUS)
    assert (status.prompt_tokens, status.completion_tokens) == (14, 7)
    assert status.errors == [("no room", 2), ("too long", 1)]
    assert status.node_hours == pytest.approx(1.5)


def test_usage_is_noted_now_and_then_and_never_runs_backwards() -> None:
    tally = Tally(0.0, 2.0)
    assert [tally.due(now) for now in (0.0, 1.0, 14.0, 15.0, 16.0)] == [True, False, False, True, False]
    assert [tally.account(spent) for spent in (1.0, 3.0, 2.5)] == [0.0, 1.0, 1.0]


def test_reasons_that_differ_in_numbers_are_one_kind_and_memory_is_bounded() -> None:
    reasons = Reasons([("prompt has 2049 tokens", 1), ("prompt has 3000 tokens", 2)])
    assert reasons.most(5) == [("prompt has 2049 tokens", 3)]
    for number in range(5000):
        reasons.add("x" * (number % 2000) + "y")
    assert len(reasons.most(9999)) <= 1025
    assert sum(rows for _, rows in reasons.most(9999)) == 5003


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"error": {"message": "too long"}}', "too long"),
        (b'{"error": {"message": null}}', "status 500"),
        (b"[1]", "[1]"),
        (b"\xff", "\ufffd"),
        (b"", "status 500"),
    ],
)
def test_a_failed_row_has_a_reason_whatever_its_body_is(body: bytes, reason: str) -> None:
    assert reason_of(body, 500) == reason


def test_node_hours_of_a_batch_are_those_of_all_brokers_that_opened_it(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    assert usage.node_hours(parts) == 0.0
    usage.note(parts, 1, 0.5)
    usage.note(parts, 1, 0.75)
    usage.note(parts, 2, 0.25)
    (tmp_path / "usage" / "000003").write_bytes(b"{")
    assert usage.node_hours(parts) == 1.0
