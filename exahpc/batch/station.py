"""What an agent holds of a batch: the input to read rows from, and its own journal. Blocks: used in threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from exahpc.batch.inputs.reader import Read, RowReader
from exahpc.batch.journal import Record
from exahpc.batch.lines import Flaw, id_bytes
from exahpc.batch.plan import Parts
from exahpc.batch.rotating import RotatingJournal
from exahpc.batch.space import BY_ITSELF, refusal
from exahpc.errors import BatchError


@dataclass(frozen=True)
class Task:
    """One row, ready to run. row: its position in run order; kind: "chat" or "completion"; body: JSON bytes of the
    request."""

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
        parts.check(plan)
        self._parts, self._name, self._plan = parts, name, plan
        self._reader = RowReader(parts, plan)
        self._journal = RotatingJournal(parts.journal, name, batch)

    def read(self, first: int, last: int, most_bytes: int) -> tuple[int, list[Task | Unreadable]]:
        """Positions from `first` on: (the one after them, rows). At least one, at most `most_bytes` of input if
        more. They must not be bad in the input."""
        found = [
            self._task(position, read)
            for position, read in enumerate(self._reader.read(first, last, most_bytes), first)
        ]
        return first + len(found), found

    def _task(self, position: int, read: Read) -> Task | Unreadable:
        row = read.found
        if isinstance(row, Flaw):
            return Unreadable(position, read.line, row.reason)
        seed = self._plan.seed(read.row) if row.seed is None else row.seed
        return Task(position, read.line, id_bytes(row.custom_id), row.kind, row.body, seed)

    def write(self, groups: Sequence[Sequence[Record]]) -> list[tuple[str, int, int]]:
        """Make records durable: (journal, start, end) of each group. Raises OSError: nothing counts, try again."""
        return self._journal.write(groups)

    def close(self) -> None:
        self._reader.close()
        self._journal.close()


IDLE_SECONDS = 10.0
"""How long files of a batch stay open when nothing is leased from it."""
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

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic, most: int = 4) -> None:
        """most: batches whose files stay open for a while when nothing is leased from them."""
        self._name, self._clock, self._most = name, clock, most
        self._open: dict[Where, Station] = {}
        self._used: dict[Where, float] = {}

    def idle(self, in_use: Collection[Where]) -> bool:
        """Whether files should be closed: the room of a journal that was removed is free only then."""
        return bool(self._idle(in_use))

    def _idle(self, in_use: Collection[Where]) -> list[Where]:
        before = self._clock() - IDLE_SECONDS
        return [where for where, at in self._used.items() if at <= before and where not in in_use]

    def perform(self, writes: Iterable[Write], loads: Iterable[Load], in_use: Collection[Where]) -> None:
        for write in writes:
            try:
                places = self._at(write.where).write(list(write.records.values()))
                write.places = dict(zip(write.records, places, strict=True))
            except (BatchError, OSError) as error:
                write.error = str(error)
                if isinstance(error, OSError):
                    write.error = str(refusal(error, Path(write.where[0]), BY_ITSELF))
        for load in loads:
            try:
                load.after, load.rows = self._at(load.where).read(load.first, load.last, load.most_bytes)
            except (BatchError, OSError, ValueError) as error:
                load.error = str(error)
                if isinstance(error, OSError):  # an open file may be a stale handle: only a new one may read again
                    self._drop(load.where)
        crowd = [where for where in self._open if where not in in_use][: -self._most]
        for where in {*crowd, *self._idle(in_use)}:
            self._drop(where)

    def _drop(self, where: Where) -> None:
        self._used.pop(where, None)
        if (station := self._open.pop(where, None)) is not None:
            station.close()

    def _at(self, where: Where) -> Station:
        station = self._open.pop(where, None) or Station(Parts(Path(where[0])), where[1], self._name)
        self._open[where] = station  # last used, last closed
        self._used[where] = self._clock()
        return station
