"""What an agent holds of a batch: the input to read rows from, and its own journal. Blocks: used in threads."""

from __future__ import annotations

import os
import zlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from exahpc.batch.journal import JOURNAL_BYTES, FrameWriter, Record, create_journal
from exahpc.batch.lines import Flaw, id_bytes, parse_line
from exahpc.batch.plan import BAD, Parts
from exahpc.errors import BatchError


@dataclass(frozen=True)
class Task:
    """One row, ready to run. kind: "chat" or "completion"; body: JSON bytes of the request."""

    row: int
    line: int
    custom_id: bytes | None
    kind: str
    body: bytes
    seed: int


@dataclass(frozen=True)
class Unreadable:
    """A row that is not what was validated: the input changed under the batch."""

    row: int
    line: int
    reason: str


class Station:
    """One agent at one batch. name: how its journal files begin; each Station has a file of its own."""

    def __init__(self, parts: Parts, batch: str, name: str) -> None:
        """Raises BatchError or OSError when the folder or the input cannot be read, or holds another batch."""
        plan = parts.plan()
        if plan is None or plan.batch != batch:
            raise BatchError(f"{parts.path} does not hold batch {batch}")
        self._parts, self._name, self._plan = parts, name, plan
        self._index, self._order = parts.load_index(), parts.load_order()
        self._input = os.open(plan.inputs[0].path, os.O_RDONLY)
        self._journal: FrameWriter | None = None

    def read(self, first: int, last: int, most_bytes: int) -> tuple[int, list[Task | Unreadable]]:
        """Rows from `first` on: (the row after them, rows). At least one, at most `most_bytes` of input if more.

        Rows that are bad in the input are left out: nobody leases them.
        """
        found: list[Task | Unreadable] = []
        row, left = first, most_bytes
        while row < last and (left > 0 or not found):
            entry = self._index[row if self._order is None else self._order[row]]
            length, line = int(entry["length"]), int(entry["line"])
            if entry["kind"] != BAD:
                left -= length
                found.append(self._task(row, line, int(entry["offset"]), length, int(entry["crc"])))
            row += 1
        return row, found

    def _task(self, row: int, line: int, offset: int, length: int, crc: int) -> Task | Unreadable:
        data = os.pread(self._input, length, offset)
        parsed = parse_line(data) if zlib.crc32(data) == crc else Flaw("")
        if isinstance(parsed, Flaw):
            return Unreadable(
                row, line, f"line {line} of {self._plan.inputs[0].path} changed after the batch began"
            )
        seed = (
            self._plan.seed(row if self._order is None else int(self._order[row]))
            if parsed.seed is None
            else parsed.seed
        )
        return Task(row, line, id_bytes(parsed.custom_id), parsed.kind, parsed.body, seed)

    def write(self, groups: Sequence[Sequence[Record]]) -> list[tuple[str, int, int]]:
        """Make records durable: (journal, start, end) of each group. Raises OSError: nothing counts, try again."""
        if self._journal is not None and self._journal.end >= JOURNAL_BYTES:
            self._journal.close()
            self._journal = None
        if self._journal is None:
            self._journal = create_journal(self._parts.journal, self._name, self._plan.batch)
        encode = msgspec.msgpack.encode
        name = self._journal.path.name
        try:
            places = [(name, *self._journal.append([encode(record) for record in group])) for group in groups]
            self._journal.sync()
        except OSError:
            # what the kernel dropped after a failed sync is not known: never append to this file again
            self._journal.close()
            self._journal = None
            raise
        return places

    def close(self) -> None:
        os.close(self._input)
        if self._journal is not None:
            self._journal.close()


Where = tuple[str, str]
"""(folder, batch): a folder that was removed may come back with another batch."""


@dataclass
class Load:
    """Read rows [first, last) or fewer. Filled in: after (the row to go on with), rows; or error."""

    lease: int
    where: Where
    first: int
    last: int
    most_bytes: int
    after: int = 0
    rows: list[Task | Unreadable] = field(default_factory=list)
    error: str | None = None


@dataclass
class Write:
    """Make the records of some leases durable. Filled in: (journal, start, end) of each lease; or error."""

    where: Where
    records: dict[int, list[Record]] = field(default_factory=dict)
    places: dict[int, tuple[str, int, int]] = field(default_factory=dict)
    error: str | None = None


class Stations:
    """The stations of one agent, opened when needed. Used by one thread at a time."""

    def __init__(self, name: str, most: int = 4) -> None:
        """most: batches whose files stay open when nothing is leased from them."""
        self._name, self._most = name, most
        self._open: dict[Where, Station] = {}

    def perform(self, writes: Iterable[Write], loads: Iterable[Load], in_use: Collection[Where]) -> None:
        for write in writes:
            try:
                places = self._at(write.where).write(list(write.records.values()))
                write.places = dict(zip(write.records, places, strict=True))
            except (BatchError, OSError) as error:
                write.error = str(error)
        for load in loads:
            try:
                load.after, load.rows = self._at(load.where).read(load.first, load.last, load.most_bytes)
            except (BatchError, OSError, ValueError) as error:
                load.error = str(error)
        for where in [where for where in self._open if where not in in_use][: -self._most]:
            self._open.pop(where).close()

    def _at(self, where: Where) -> Station:
        station = self._open.pop(where, None) or Station(Parts(Path(where[0])), where[1], self._name)
        self._open[where] = station  # last used, last closed
        return station
