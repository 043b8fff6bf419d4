"""Results as JSON lines in OpenAI's batch output form, in input order.

A row that succeeded has `response` (status_code 200, the body) and `error` null; a failed one has `response` null
and `error`, so no reader can take it for a success.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import msgspec

from exahpc.batch.columns import Outcome
from exahpc.batch.lines import id_text
from exahpc.batch.plan import Parts
from exahpc.batch.results import Gathered, Results, Summary, Tally, error_of
from exahpc.errors import BatchError

Progress = Callable[[int, int], None]


def output_line(outcome: Outcome, batch: str) -> bytes:
    """One line, with its line end."""
    head = f'{{"id": "batch_req_{batch.removeprefix("batch_")}_{outcome.row}", "custom_id": '
    custom_id = json.dumps(id_text(outcome.custom_id))
    if outcome.ok:
        middle = f', "response": {{"status_code": 200, "request_id": "row-{outcome.row}", "body": '
        parts = [
            head.encode(),
            custom_id.encode(),
            middle.encode(),
            _one_line(outcome.body),
            b'}, "error": null}\n',
        ]
        return b"".join(parts)
    fields = error_of(outcome)
    fields["code"] = fields["code"] or "row_failed"
    error = json.dumps({**fields, "status_code": outcome.status, "line": outcome.line})
    return f'{head}{custom_id}, "response": null, "error": {error}}}\n'.encode()


def _one_line(body: bytes) -> bytes:
    """The body as JSON without line ends; as it is if it can be. What is no JSON becomes a JSON string."""
    try:
        if b"\n" not in body and b"\r" not in body:
            msgspec.json.decode(body, type=msgspec.Raw)
            return body
    except (msgspec.DecodeError, RecursionError):
        pass  # or only a lone surrogate, which msgspec refuses
    try:
        return json.dumps(json.loads(body)).encode()
    except (ValueError, RecursionError):
        return json.dumps(body.decode("utf-8", "replace")).encode()


def export(source: Path, target: Path | BinaryIO, progress: Progress = lambda done, total: None) -> Summary:
    """Write `source` (a results file, or a `.parts` folder with what is committed so far) as JSON lines.

    A path appears whole or not at all, 0600. Returns counts of what was written.
    """
    if isinstance(target, Path):
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            with os.fdopen(os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb") as file:
                summary = _export(source, file, progress)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except OSError as error:
            raise BatchError(f"{target} cannot be written: {error.strerror or error}") from error
        finally:
            temporary.unlink(missing_ok=True)
        return summary
    return _export(source, target, progress)


def _export(source: Path, file: BinaryIO, progress: Progress) -> Summary:
    opened: Gathered | Results
    if source.is_dir():
        parts = Parts(source.absolute())
        plan = parts.plan()
        if plan is None:
            raise BatchError(f"{source} holds no batch: name a results file or a .parts folder")
        opened, batch, rows = Gathered(parts, plan), plan.batch, plan.rows
    else:
        opened = Results(source)
        batch, rows = opened.batch, opened.summary().total
    tally = Tally()
    try:
        for outcome in opened.outcomes():
            tally.add(outcome)
            file.write(output_line(outcome, batch))
            if outcome.row % 4096 == 0:
                progress(outcome.row, rows)
    finally:
        opened.close()
    progress(rows, rows)
    return tally.summary(source)
