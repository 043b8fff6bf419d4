"""Committed rows, rolled into HDF5 files that exist whole or not at all.

`segments/N.h5` holds the columns of `columns`, and in its attribute `cursor` how far commit journals (and
journal/source, as number 0) are contained in segments 1..N. So the last segment tells where to go on, and nothing
else has to be remembered. A segment is published with a hard link: it never replaces another, so a client that was
thought dead cannot spoil what its successor wrote.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
from msgspec.structs import replace

from exahpc.batch import commits
from exahpc.batch.columns import NUMBERS, Outcome, arrays
from exahpc.batch.commits import Commit
from exahpc.batch.intervals import Intervals
from exahpc.batch.journal import MAGIC, FrameReader, Record, sync_directory
from exahpc.batch.plan import SOURCE, BatchPlan, Parts
from exahpc.errors import BatchError

SEGMENT_ROWS = 20_000
SEGMENT_BYTES = 256 * 2**20
_SOURCE_NUMBER = 0
_SOURCE_STEP = 1000  # bad rows taken in one piece


@dataclass(frozen=True)
class Piece:
    """One range of committed bytes. number, upto: the cursor after it; rows: None for all in the range."""

    number: int
    upto: int
    journal: str
    start: int
    end: int
    rows: Intervals | None
    size: int


def pieces(parts: Parts, plan: BatchPlan, cursor: dict[int, int]) -> Iterator[Piece]:
    """What is committed beyond the cursor, in order."""
    start = max(cursor.get(_SOURCE_NUMBER, 0), len(MAGIC))
    if plan.bad and start < plan.source_end:
        source: FrameReader[Record] = FrameReader(parts.journal_file(SOURCE), Record)
        size, end = 0, start
        for _, end, _ in source.exactly(start, plan.source_end):
            size += 1
            if size == _SOURCE_STEP:
                yield Piece(_SOURCE_NUMBER, end, SOURCE, start, end, None, size)
                start, size = end, 0
        source.close()
        if size:
            yield Piece(_SOURCE_NUMBER, end, SOURCE, start, end, None, size)
    for number, upto, event in commits.read(parts.commits, cursor):
        if isinstance(event, Commit):
            rows = Intervals([*event.rows, *event.bad])
            yield Piece(number, upto, event.journal, event.start, event.end, rows, event.size)


def locations(parts: Parts, piece: Piece) -> Iterator[tuple[int, Record]]:
    """(byte, record) of each row that a piece commits; `record.row` is the row of the input, not the position.

    Raises BatchError when one cannot be read.
    """
    order = parts.load_order()
    missing = Intervals(piece.rows) if piece.rows is not None else None
    reader: FrameReader[Record] = FrameReader(parts.journal_file(piece.journal), Record)
    try:
        for start, _, record in reader.exactly(piece.start, piece.end):
            if missing is None or missing.remove(record.row, record.row + 1):
                yield start, record if order is None else replace(record, row=int(order[record.row]))
    finally:
        reader.close()
    if missing:
        raise BatchError(
            f"{reader.path} lacks committed rows {list(missing)[:5]}: the file was changed; run again"
        )


def numbers(parts: Parts) -> list[int]:
    return sorted(int(path.stem) for path in parts.segments.glob("[0-9]*.h5"))


class Segment:
    """One segment, opened for reading. Text columns are contiguous: rows are read straight from the file."""

    def __init__(self, parts: Parts, number: int) -> None:
        path = parts.segments / f"{number:06d}.h5"
        try:
            with h5py.File(path, "r", locking=False) as file:
                self.cursor = {int(k): int(v) for k, v in json.loads(file.attrs["cursor"]).items()}
                self.columns = {name: file[name][:] for name in NUMBERS}
                self._present = file["custom_id/present"][:]
                self._texts = {
                    name: (file[f"{name}/offsets"][:], file[f"{name}/data"].id.get_offset() or 0)
                    for name in ("custom_id", "response")
                }
        except (OSError, KeyError, ValueError) as error:
            raise BatchError(f"segment {path} cannot be read ({error}): remove it and run again") from error
        self._fd = os.open(path, os.O_RDONLY)

    def _text(self, name: str, i: int) -> bytes:
        offsets, base = self._texts[name]
        return os.pread(self._fd, int(offsets[i + 1] - offsets[i]), base + int(offsets[i]))

    def outcome(self, i: int) -> Outcome:
        row, line, status, prompt, completion = (int(self.columns[name][i]) for name in NUMBERS)
        custom_id = self._text("custom_id", i) if self._present[i] else None
        return Outcome(row, line, status, custom_id, self._text("response", i), prompt, completion)

    def close(self) -> None:
        os.close(self._fd)


class Roller:
    """Writes segments. One at a time for a folder (see `client`); may be killed at any moment."""

    def __init__(
        self, parts: Parts, plan: BatchPlan, most_rows: int = SEGMENT_ROWS, beat: Callable[[], None] = lambda: None
    ) -> None:
        """beat: called before each segment is published; it raises when this client was replaced."""
        self._parts, self._plan, self._most, self._beat = parts, plan, most_rows, beat
        self._seen = np.zeros(plan.rows, bool)
        self._cursor: dict[int, int] = {}
        self._next = 1
        for number in numbers(parts):
            segment = Segment(parts, number)
            segment.close()
            self._seen[segment.columns["row"].astype(np.int64)] = True
            self._cursor, self._next = segment.cursor, number + 1
        for path in parts.segments.glob(".*.tmp"):
            path.unlink(missing_ok=True)

    @property
    def rolled(self) -> int:
        """Rows in segments."""
        return int(self._seen.sum())

    def roll(self, everything: bool = False) -> int:
        """Write every segment that is full (everything: and the last one). Returns the rows written."""
        gathered: list[Piece] = []
        rows = size = written = 0
        cursor = dict(self._cursor)
        for piece in pieces(self._parts, self._plan, self._cursor):
            gathered.append(piece)
            cursor[piece.number] = piece.upto
            rows, size = rows + piece.size, size + piece.end - piece.start
            if rows >= self._most or size >= SEGMENT_BYTES:
                written += self._write(gathered, dict(cursor))
                gathered, rows, size = [], 0, 0
        if everything and gathered:
            written += self._write(gathered, cursor)
        return written

    def _write(self, gathered: list[Piece], cursor: dict[int, int]) -> int:
        found: dict[int, Outcome] = {}
        for piece in gathered:
            for _, record in locations(self._parts, piece):
                if not self._seen[record.row]:
                    found.setdefault(record.row, Outcome.of(record))
        if found:
            ordered = [found[row] for row in sorted(found)]
            self._publish(ordered, cursor)
            self._seen[list(found)] = True
            self._next += 1
        self._cursor = cursor
        return len(found)

    def _publish(self, ordered: list[Outcome], cursor: dict[int, int]) -> None:
        folder = self._parts.segments
        temporary, path = folder / f".{self._next:06d}.{os.getpid()}.tmp", folder / f"{self._next:06d}.h5"
        os.close(os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600))
        with h5py.File(temporary, "w", locking=False) as file:
            for name, values in arrays(ordered).items():
                file.create_dataset(name, data=values)
            file.attrs["format"], file.attrs["version"] = "exahpc.batch.segment", 1
            file.attrs["cursor"] = json.dumps(cursor)
        self._beat()
        publish(temporary, path)


def publish(temporary: Path, path: Path) -> None:
    """Make a complete file appear under a name that must be free. Raises BatchError when it is taken."""
    fd = os.open(temporary, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise BatchError(f"{path} exists already: another `exahpc batch run` works on this output") from None
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        os.rename(temporary, path)  # no hard links on this file system
    else:
        temporary.unlink()
    sync_directory(path.parent)
