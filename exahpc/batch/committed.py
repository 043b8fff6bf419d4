"""What the commit journal says is done: which records, in which bytes of which journals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from exahpc.batch import commits
from exahpc.batch.commits import Commit
from exahpc.batch.intervals import Ranges
from exahpc.batch.journal import MAGIC, FrameReader, Record
from exahpc.batch.plan import SOURCE, BatchPlan, Parts
from exahpc.errors import BatchError

Cursor = dict[int, int]
"""Bytes that were taken in of each commit journal, by number, and of journal/source as number 0."""
_SOURCE_NUMBER = 0
_SOURCE_STEP = 1000  # bad rows taken in one piece
_OPEN_JOURNALS = 32


@dataclass(frozen=True)
class Piece:
    """One range of committed bytes. number, upto: the cursor after it; positions: None for all in the range."""

    number: int
    upto: int
    journal: str
    start: int
    end: int
    positions: Ranges | None
    size: int


def pieces(parts: Parts, plan: BatchPlan, cursor: Cursor) -> Iterator[Piece]:
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
            rows = [*event.rows, *event.bad]
            yield Piece(number, upto, event.journal, event.start, event.end, rows, event.size)


class Journals:
    """Reads the records of pieces. Few files stay open, however many journals there are."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._open: dict[str, FrameReader[Record]] = {}

    def records(self, piece: Piece) -> Iterator[Record]:
        """Each record that a piece commits, once. Raises BatchError when one cannot be read."""
        reader = self._reader(piece.journal)
        found = (record for _, _, record in reader.exactly(piece.start, piece.end))
        if piece.positions is None:
            yield from found
            return
        missing = {position for first, last in piece.positions for position in range(first, last)}
        for record in found:
            if record.row in missing:
                missing.remove(record.row)
                yield record
        if missing:
            raise BatchError(
                f"{reader.path} lacks committed rows {sorted(missing)[:5]}: it is not the file that was written; "
                f"restore it, or remove {self._parts.path} and run again"
            )

    def _reader(self, name: str) -> FrameReader[Record]:
        reader = self._open.pop(name, None)
        if reader is None:
            if len(self._open) >= _OPEN_JOURNALS:
                self._open.pop(next(iter(self._open))).close()
            path = self._parts.journal_file(name)
            try:
                reader = FrameReader(path, Record)
            except FileNotFoundError:
                raise BatchError(f"{path} is gone, and committed results with it: restore the file") from None
        self._open[name] = reader  # last used, last closed
        return reader

    def close(self) -> None:
        for reader in self._open.values():
            reader.close()
        self._open.clear()
