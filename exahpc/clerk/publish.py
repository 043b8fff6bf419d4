"""What a batch made, as files that its owner may download: answers in one, errors in the other, in input order."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from exahpc.batch.export import openai_lines, opened
from exahpc.batch.resultsfile import Results
from exahpc.batch.space import refusal
from exahpc.wire.shelf import Shelf
from exahpc.wire.submissions import BATCH_PREFIX, FILE_PREFIX, FileRecord

_TOKENS = ("prompt_tokens", "completion_tokens")


@dataclass(frozen=True)
class Published:
    """Ids of the files, None for one that would be empty; rows and tokens in them."""

    output_file: str | None
    error_file: str | None
    ok: int
    failed: int
    prompt_tokens: int
    completion_tokens: int


class _Half:
    """One of the two files. Doing it again, after whatever end, gives the same file once more."""

    def __init__(self, shelf: Shelf, batch: str, kind: str, digit: str) -> None:
        self.id = FILE_PREFIX + batch.removeprefix(BATCH_PREFIX)[:-1] + digit
        self._shelf, self._name = shelf, f"{batch}_{kind}.jsonl"
        self._file: BinaryIO | None = None
        self._size = 0

    def write(self, lines: list[bytes]) -> None:
        if not lines:
            return
        if self._file is None:
            fd = os.open(self._shelf.part(self.id), os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
            self._file = os.fdopen(fd, "wb")
        self._size += self._file.write(b"".join(lines))

    def publish(self, now: int) -> str | None:
        if self._file is None:
            return None
        with self._file as file:
            file.flush()
            os.fsync(file.fileno())
        self._shelf.publish(FileRecord(self.id, self._size, now, self._name, "batch_output"))
        return self.id


def publish(
    source: Path, batch: str, shelf: Shelf, now: int, beat: Callable[[], None] = lambda: None
) -> Published:
    """source: a results file, or a `.parts` folder: then what is done so far. beat: called again and again.

    Raises BatchError; NoRoomError when the disk is full.
    """
    good, bad = _Half(shelf, batch, "output", "0"), _Half(shelf, batch, "error", "1")
    rows = failed = 0
    tokens = dict.fromkeys(_TOKENS, 0)
    try:
        shelf.create()
        with opened(source) as (_, _, blocks):
            for block in blocks(False):
                lines = openai_lines(block, batch)
                outcomes = block.numbers["outcome"]
                good.write([line for line, outcome in zip(lines, outcomes, strict=True) if not outcome])
                bad.write([line for line, outcome in zip(lines, outcomes, strict=True) if outcome])
                rows, failed = rows + len(lines), failed + int(np.count_nonzero(outcomes))
                for name in _TOKENS:
                    tokens[name] += int(block.numbers[name].sum(dtype=np.int64))
                beat()
        if source.is_file():  # read for its texts, it does not give these
            tokens = _tokens(source)
        return Published(good.publish(now), bad.publish(now), rows - failed, failed, **tokens)
    except OSError as error:
        raise refusal(error, source) from error


def _tokens(path: Path) -> dict[str, int]:
    results = Results(path)
    try:
        return {name: int(results.column(name).sum(dtype=np.int64)) for name in _TOKENS}
    finally:
        results.close()
