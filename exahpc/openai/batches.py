"""OpenAI's objects of files and batches, from what is written down of them; and the body that orders a batch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from exahpc.errors import RequestError
from exahpc.openai.body import load, printable
from exahpc.openai.fields import Fields, refuse
from exahpc.wire.submissions import FileRecord, Order, State, Submission

ENDPOINTS = ("/v1/chat/completions", "/v1/completions")
"""What the rows of a batch may ask for."""
_WINDOW = re.compile(r"([1-9]\d{0,3})([hd])")
_HOURS = {"h": 1, "d": 24}
_MOST_PAIRS, _LONGEST_KEY, _LONGEST_VALUE = 16, 64, 512  # of metadata, as OpenAI has it
_MOST_LISTED = 10_000

Values = dict[str, Any]


class Named(Protocol):
    """What has an id."""

    @property
    def id(self) -> str: ...


T = TypeVar("T", bound=Named)


def file_object(record: FileRecord) -> Values:
    return {
        "id": record.id,
        "object": "file",
        "bytes": record.size,
        "created_at": record.created,
        "filename": record.filename,
        "purpose": record.purpose,
        "status": "processed",
        "expires_at": None,
        "status_details": None,
    }


def batch_object(submission: Submission, state: State, cancelled_at: int | None, model: str) -> Values:
    """cancelled_at: since when it is wished that it ends, in seconds since 1970. Only of submissions by HTTP."""
    order = submission.order
    assert order is not None, "a batch of the command line has no OpenAI object"
    cancelling = cancelled_at is not None and not state.ended
    errors = [{"code": e.code, "line": e.line, "message": e.message, "param": None} for e in state.errors]
    spent = state.prompt_tokens + state.completion_tokens
    usage = {
        "input_tokens": state.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": state.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": spent,
    }
    return {
        "id": submission.id,
        "object": "batch",
        "endpoint": order.endpoint,
        "model": model,
        "errors": {"object": "list", "data": errors} if errors else None,
        "input_file_id": order.input_file,
        "completion_window": order.window,
        "status": "cancelling" if cancelling else state.phase,
        "output_file_id": state.output_file,
        "error_file_id": state.error_file,
        "created_at": submission.created,
        "in_progress_at": state.times.get("in_progress"),
        "expires_at": submission.expires,
        "finalizing_at": state.times.get("finalizing"),
        "completed_at": state.times.get("completed"),
        "failed_at": state.times.get("failed"),
        "expired_at": state.times.get("expired"),
        "cancelling_at": cancelled_at,
        "cancelled_at": state.times.get("cancelled"),
        "request_counts": {"total": state.total, "completed": state.ok, "failed": state.failed},
        "usage": usage if state.ended else None,
        "metadata": order.metadata,
    }


def deleted(file: str) -> Values:
    return {"id": file, "object": "file", "deleted": True}


def listed(objects: list[Values], more: bool) -> Values:
    """One page of a list."""
    ends = (objects[0]["id"], objects[-1]["id"]) if objects else (None, None)
    return {"object": "list", "data": objects, "first_id": ends[0], "last_id": ends[1], "has_more": more}


def encoded(values: Values) -> bytes:
    return msgspec.json.encode(values)


def page(found: Iterable[T], after: str | None, limit: int) -> tuple[list[T], bool]:
    """(up to `limit` of `found` behind the one called `after`, whether there are more). Reads no further than
    that. An `after` that is not there gives nothing: it may have been deleted since."""
    taken: list[T] = []
    behind = after is None
    for one in found:
        if not behind:
            behind = one.id == after
        elif len(taken) == limit:
            return taken, True
        else:
            taken.append(one)
    return taken, False


def limit_of(query: Mapping[str, str], default: int, most: int = _MOST_LISTED) -> int:
    """Of a list request. Raises RequestError."""
    text = query.get("limit", str(default))
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text[:9]) <= most:
        refuse("limit", f"{printable(text)} is out of range: give an integer from 1 to {most}, or leave it out")
    return int(text)


def order_of(body: bytes) -> Order:
    """The body of `POST /v1/batches`. Raises RequestError."""
    fields = Fields(load(body))
    fields.misspelt(frozenset({"input_file_id", "endpoint", "completion_window", "metadata"}))
    fields.neutral("output_expires_after", (), "files stay until they are deleted; delete them when you are done")
    file, endpoint, window = (fields.string(n) for n in ("input_file_id", "endpoint", "completion_window"))
    if not file:
        refuse("input_file_id", 'missing: upload the input with purpose "batch" and give the id of that file')
    if endpoint not in ENDPOINTS:
        refuse("endpoint", f"{printable(endpoint)} is not served in batches: give {' or '.join(ENDPOINTS)}")
    span = _WINDOW.fullmatch(window or "")
    if window is None or span is None:
        refuse("completion_window", f'{printable(window)} is no time: give hours or days, as in "24h" or "7d"')
    seconds = int(span[1]) * _HOURS[span[2]] * 3600
    return Order(file, endpoint, window, seconds, _metadata(fields))


def _metadata(fields: Fields) -> dict[str, str] | None:
    found = fields.get("metadata")
    if found is None:
        return None
    pairs = fields.mapping("metadata")
    if len(pairs) > _MOST_PAIRS:
        refuse("metadata", f"{len(pairs)} pairs; at most {_MOST_PAIRS} are kept")
    for key, value in pairs.items():
        if not isinstance(value, str) or len(key) > _LONGEST_KEY or len(value) > _LONGEST_VALUE:
            refuse(
                "metadata",
                f"{printable(key)}: {printable(value)} cannot be kept: keys are strings of up to {_LONGEST_KEY} "
                f"characters, values strings of up to {_LONGEST_VALUE}",
            )
    return pairs


def no_such(kind: str, name: str) -> RequestError:
    """404, for what is not there and for what belongs to somebody else."""
    return RequestError(f"there is no {kind} {printable(name)} here", status=404, param="id", code="not_found")
