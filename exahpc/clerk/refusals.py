"""Which rows are to blame when an input is refused, in the order of the input."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np

from exahpc.batch.inputs.detect import detect
from exahpc.batch.inputs.options import InputOptions
from exahpc.batch.plan import BAD, KINDS, Parts
from exahpc.errors import BatchError
from exahpc.wire.submissions import LineError

MOST = 1000
"""Bad lines that a state tells; all of them are in `bad.jsonl` of a batch of the command line."""
_KIND = {"/v1/chat/completions": "chat", "/v1/completions": "completion"}
_URL = {kind: url for url, kind in _KIND.items()}
_STRANGER = "mismatched_endpoint"


class InputRefused(BatchError):
    """lines: the first `MOST` that are to blame."""

    def __init__(self, message: str, lines: tuple[LineError, ...]) -> None:
        super().__init__(message)
        self.lines = lines


class _Bad(msgspec.Struct):
    """A line of bad.jsonl."""

    file: str
    line: int
    row: int
    reason: str


def refused(error: BatchError, parts: Parts, *, named: bool) -> BatchError:
    """What validating the inputs raised, with the lines that validating reported. named: with their files."""
    try:
        if type(error) is not BatchError or parts.plan() is not None:
            return error
        first = heapq.nsmallest(MOST, _reported(parts), key=lambda bad: bad.row)
    except (OSError, BatchError, msgspec.MsgspecError):
        return error  # it never came to a report
    lines = tuple(LineError(bad.reason, bad.line, file=bad.file if named else "") for bad in first)
    return InputRefused(str(error), lines) if lines else error


def _reported(parts: Parts) -> Iterator[_Bad]:
    with open(parts.bad, "rb") as file:
        for text in file:
            yield msgspec.json.decode(text, type=_Bad)


def refuse_packed(sources: Iterable[Path], options: InputOptions) -> None:
    """Raises BatchError for a compressed file: an upload's limit would say nothing about what comes out of it."""
    for source in sources:
        try:
            packed = detect(source, options).packed
        except OSError as error:
            raise BatchError(f"input {source} cannot be read: {error.strerror}") from error
        if packed is not None:
            raise BatchError(f"the file is compressed by {packed}: upload the lines themselves")


def check_endpoint(parts: Parts, endpoint: str) -> None:
    """Raises InputRefused when rows ask for another endpoint than their batch was ordered for."""
    found = tuple(islice(_strangers(parts, endpoint), MOST))
    if found:
        raise InputRefused(f"rows of the input are for another endpoint than {endpoint}", found)


def _strangers(parts: Parts, endpoint: str) -> Iterator[LineError]:
    index = parts.load_index()
    kinds = index["kind"]
    for row in np.flatnonzero((kinds != KINDS.index(_KIND[endpoint])) & (kinds != BAD)):
        url = _URL[KINDS[int(kinds[row])]]
        reason = f"url is {url}, but the batch was created for {endpoint}: give all rows of a batch one url"
        yield LineError(reason, int(index["line"][row]), _STRANGER)
