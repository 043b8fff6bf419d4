"""OpenAI's objects of batches from what is written down of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Batch, FileObject

from exahpc.errors import RequestError, StateError
from exahpc.openai.batches import batch_object, file_object, limit_of, order_of, page
from exahpc.wire.submissions import (
    BATCH_PREFIX,
    ENDS,
    FILE_PREFIX,
    FileRecord,
    LineError,
    Order,
    Phase,
    State,
    Submission,
    is_batch_id,
    is_file_id,
    new_id,
)

ORDER = Order("file-1", "/v1/completions", "24h", 86_400, {"a": "b"})
SUBMISSION = Submission("batch_1", 100, "name me", ("/in",), "/out", order=ORDER)
PHASES: tuple[Phase, ...] = (
    "validating", "in_progress", "finalizing", "completed", "failed", "cancelled", "expired",
)  # fmt: skip


def shown(state: State, cancelled_at: int | None = None) -> Batch:
    """Read by the official client's strict model."""
    return Batch.model_validate(batch_object(SUBMISSION, state, cancelled_at, "tiny"), strict=True)


@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_is_a_status_with_its_time(phase: Phase) -> None:
    found = shown(State(phase, times={} if phase == "validating" else {phase: 123}))
    assert found.status == phase
    assert phase == "validating" or getattr(found, f"{phase}_at") == 123
    assert found.expires_at == 100 + 86_400
    assert (found.usage is not None) == (phase in ENDS)


def test_a_wish_to_cancel_shows_until_the_batch_has_ended() -> None:
    going = shown(State("in_progress", total=9, ok=2, failed=1), 50)
    assert (going.status, going.cancelling_at) == ("cancelling", 50)
    counts = going.request_counts
    assert counts is not None
    assert (counts.total, counts.completed, counts.failed) == (9, 2, 1)
    assert shown(State("completed"), 50).status == "completed", "it was too late"


def test_errors_tell_line_and_reason_and_none_are_null() -> None:
    assert shown(State()).errors is None
    found = shown(State("failed", errors=(LineError("no", 3), LineError("all", code="x")))).errors
    assert found is not None
    assert found.data is not None
    assert [(e.line, e.message, e.code) for e in found.data] == [(3, "no", "invalid_request"), (None, "all", "x")]


def test_files_are_what_the_client_expects() -> None:
    record = FileRecord("file-1", 9, 100, "in.jsonl", "batch_output")
    assert FileObject.model_validate(file_object(record), strict=True).purpose == "batch_output"


@given(st.lists(st.sampled_from(PHASES), max_size=8))
def test_a_batch_that_has_ended_never_becomes_anything_else(way: list[Phase]) -> None:
    state = State()
    for now, phase in enumerate(way):
        if state.ended and phase != state.phase:
            with pytest.raises(StateError):
                state.to(phase, now)
            continue
        try:
            state = state.to(phase, now)
        except StateError:
            assert phase in ("validating", "in_progress"), "only backwards leads no way"
        assert state.to(state.phase, now + 1) is state


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**48 - 1), st.integers(0, 2**60), st.integers(0, 2**60))
def test_ids_sort_by_their_time_and_are_known_as_ids(one: int, other: int, noise: int, more: int) -> None:
    first, second = new_id(BATCH_PREFIX, one, noise), new_id(BATCH_PREFIX, other, more)
    assert one == other or (first < second) == (one < other)
    assert is_batch_id(first)
    assert not is_file_id(first)
    assert is_file_id(new_id(FILE_PREFIX, one, noise))


@pytest.mark.parametrize(
    "text", ["", "batch_", "batch_" + "g" * 24, "batch_" + "0" * 25, "../" + "0" * 24, "batch_\n"]
)
def test_what_is_no_id_is_part_of_no_path(text: str) -> None:
    assert not is_batch_id(text)
    assert not is_file_id(text)


class Thing:
    def __init__(self, name: str) -> None:
        self.id = name


@given(st.integers(0, 30), st.integers(1, 10))
def test_pages_together_are_the_whole_list_once(count: int, limit: int) -> None:
    things, seen, after = [Thing(str(n)) for n in range(count)], list[str](), None
    while True:
        taken, more = page(things, after, limit)
        seen += [thing.id for thing in taken]
        assert len(taken) <= limit
        if not more:
            break
        after = taken[-1].id
    assert seen == [thing.id for thing in things]


def test_a_page_behind_what_is_gone_is_empty() -> None:
    assert page([Thing("a")], "b", 5) == ([], False)


@pytest.mark.parametrize("text", ["0", "-1", "x", "", "101", "9" * 5000, "\u0661\u0662"])
def test_a_limit_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(RequestError):
        limit_of({"limit": text}, 20, 100)


@pytest.mark.parametrize(("window", "seconds"), [("24h", 86_400), ("7d", 604_800), ("1h", 3600)])
def test_windows_are_hours_or_days(window: str, seconds: int) -> None:
    body: dict[str, Any] = {
        "input_file_id": "file-1", "endpoint": "/v1/completions", "completion_window": window
    }  # fmt: skip
    found = order_of(json.dumps(body).encode())
    assert (found.window, found.window_seconds, found.metadata) == (window, seconds, None)
