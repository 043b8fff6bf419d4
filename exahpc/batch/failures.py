"""Which rows failed, and why."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from exahpc.batch.columns import OUTCOMES, Block
from exahpc.batch.gather import Gathered
from exahpc.batch.plan import Parts
from exahpc.batch.reasons import reason_of
from exahpc.batch.resultsfile import Results
from exahpc.errors import BatchError


class Failure(msgspec.Struct, frozen=True):
    """A row without an answer. line: in `file`, from 1; custom_id: None when the line gave none; code, message: of
    the error; skipped: bad in the input, so that running it again cannot help."""

    row: int
    file: str
    line: int
    custom_id: str | None
    status: int
    code: str | None
    message: str
    skipped: bool


def failures(source: Path) -> Iterator[Failure]:
    """Of a results file, or of what is committed so far in a `.parts` folder, in input order.

    Answers are not read; of a results file not even passed by. Raises BatchError.
    """
    if source.is_dir():
        parts = Parts(source.absolute())
        plan = parts.plan()
        if plan is None:
            raise BatchError(f"{source} holds no batch: name a results file or a .parts folder")
        files = [one.path for one in plan.inputs]
        with Gathered(parts, plan) as gathered:
            for block in gathered.blocks():
                bad = np.flatnonzero(block.numbers["outcome"])
                if len(bad):
                    found = block.take(bad)
                    yield from _failures(found, files, plan.files_of(found.numbers["row"]).tolist())
        return
    results = Results(source)
    try:
        files, numbers = results.inputs, results.column("file")
        for low, block in results.failed():
            yield from _failures(block, files, numbers[low].tolist())
    finally:
        results.close()


def _failures(block: Block, files: list[str], places: list[int]) -> Iterator[Failure]:
    numbers = block.numbers
    ids, bodies = block.texts["custom_id"].pieces(), block.texts["response"].pieces()
    for number, place, custom_id, body in zip(numbers, places, ids, bodies, strict=True):
        status = int(number["status"])
        fields = error_of(body, status)
        yield Failure(
            int(number["row"]), files[place] if place < len(files) else "", int(number["line"]),
            custom_id.decode("utf-8", "surrogatepass") if number["named"] else None,
            status, fields["code"], fields["message"], int(number["outcome"]) == OUTCOMES["skipped"],
        )  # fmt: skip


def error_of(body: bytes, status: int) -> dict[str, Any]:
    """OpenAI's error fields of a failed row: message (always a text), type, param, code; whatever the body was."""
    fields: dict[str, Any] = {"message": None, "type": None, "param": None, "code": None}
    try:
        found = msgspec.json.decode(body)["error"]
        fields.update({name: found.get(name) for name in fields})
    except (msgspec.MsgspecError, RecursionError, LookupError, TypeError, AttributeError):
        pass
    if not isinstance(fields["message"], str) or not fields["message"]:
        fields["message"] = reason_of(body, status)
    if fields["code"] is not None:
        fields["code"] = str(fields["code"])
    return fields
