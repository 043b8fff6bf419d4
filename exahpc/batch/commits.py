"""The commit journal: one file a broker, claimed by number; what it names is what counts.

The first frame of a file is `Opened`: which earlier files count, and how many bytes of each. An earlier broker
that goes on writing (cut off, not dead) only writes beyond what the newest `Opened` accepted, so it can no
longer commit anything. A file without a whole `Opened` never counted.

`N.fold` beside a file (see `folds`) tells what all events up to a byte of it come to.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from exahpc.batch.intervals import Ranges, count
from exahpc.batch.journal import MAGIC, FrameReader, FrameWriter
from exahpc.errors import BatchError


class Event(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of what a commit journal holds."""


class Opened(Event, frozen=True):
    """First frame: accepted holds (number, bytes) of each earlier file that counts."""

    epoch: int
    accepted: list[tuple[int, int]]


class Granted(Event, frozen=True):
    """Rows [first, last) were leased to an agent."""

    lease: int
    agent: str
    first: int
    last: int


class Commit(Event, frozen=True):
    """These rows are done: their records lie in bytes [start, end) of journal/`journal`.

    rows ended well, bad badly; other records inside the byte range do not count.
    """

    lease: int
    journal: str
    start: int
    end: int
    rows: Ranges
    bad: Ranges

    @property
    def size(self) -> int:
        return count(self.rows) + count(self.bad)


class Returned(Event, frozen=True):
    """Rows of a lease went back to the pool."""

    lease: int
    rows: Ranges


class Blamed(Event, frozen=True):
    """An agent was lost with these rows, or a replica ended by itself under them: they may be the cause."""

    rows: Ranges


class Closed(Event, frozen=True):
    """A lease has ended; whatever it still held went back to the pool."""

    lease: int


AnyEvent = Opened | Granted | Commit | Returned | Blamed | Closed


def _numbers(folder: Path) -> list[int]:
    return sorted(int(name) for name in os.listdir(folder) if name.isdigit())


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}"


def _first(folder: Path, number: int) -> Opened | None:
    try:
        reader: FrameReader[AnyEvent] = FrameReader(_path(folder, number), AnyEvent)
    except FileNotFoundError:  # whoever claimed it could not open the batch
        return None
    try:
        first = next(reader.frames(), None)
    finally:
        reader.close()
    return first[2] if first is not None and isinstance(first[2], Opened) else None


def accepted(folder: Path) -> list[tuple[int, int | None]]:
    """(number, bytes that count) of each file that counts, oldest first; None: as far as it can be read."""
    for number in reversed(_numbers(folder)):
        opened = _first(folder, number)
        if opened is not None:
            return [*opened.accepted, (number, None)]
    return []


def read(folder: Path, begin: dict[int, int] | None = None) -> Iterator[tuple[int, int, AnyEvent]]:
    """(file number, end of the frame, event), in order, of everything that counts.

    begin: bytes of each file that the reader has seen already. Raises BatchError when an accepted frame of an
    earlier file cannot be read any more.
    """
    for number, limit in accepted(folder):
        start = max((begin or {}).get(number, 0), len(MAGIC))
        reader: FrameReader[AnyEvent] = FrameReader(_path(folder, number), AnyEvent)
        try:
            if limit is not None and start > limit:
                continue
            frames = reader.frames(start) if limit is None else reader.exactly(start, limit)
            for _, end, event in frames:
                yield number, end, event
        finally:
            reader.close()


class CommitWriter:
    """The commit journal of one broker. Blocking: used off the event loop."""

    def __init__(
        self,
        folder: Path,
        epoch: int,
        replay: Callable[[AnyEvent], None],
        resume: Callable[[list[tuple[int, int | None]]], tuple[int, int] | None] = lambda accepted: None,
    ) -> None:
        """Claims the next number, replays everything that counted before, and states how much that was.

        resume: given what counts, returns (number, end) up to which the caller knows the events already. Raises
        OSError (disk full): then nothing is left of the claim, and trying again is allowed.
        """
        self.folder = folder
        number = max(_numbers(folder), default=0) + 1
        while True:
            try:
                self._file = FrameWriter(_path(folder, number))
                break
            except FileExistsError:
                number += 1
        self.number = number
        self.replayed = 0
        try:
            self._take_over(epoch, replay, resume)
        except BaseException:
            self._file.discard()
            raise

    def _take_over(
        self,
        epoch: int,
        replay: Callable[[AnyEvent], None],
        resume: Callable[[list[tuple[int, int | None]]], tuple[int, int] | None],
    ) -> None:
        counting = accepted(self.folder)
        known = resume(counting)
        earlier = dict[int, int]()
        if known is not None:
            earlier = {old: limit for old, limit in counting if old < known[0] and limit is not None}
            earlier[known[0]] = known[1]
        for old, end, event in read(self.folder, dict(earlier)):
            earlier[old] = end
            replay(event)
            self.replayed += 1
        self._append([Opened(epoch, sorted(earlier.items()))])

    @property
    def end(self) -> int:
        """Bytes of this journal that are durable."""
        return self._file.end

    def _append(self, events: list[AnyEvent]) -> None:
        before = self._file.end
        try:
            self._file.append([msgspec.msgpack.encode(event) for event in events])
            self._file.sync()
        except OSError:
            self._file.end = before  # how much of it is on disk is not known: the next attempt writes all of it
            raise

    def append(self, events: list[AnyEvent]) -> None:
        """Make events durable. Raises BatchError when a newer broker has taken over this batch.

        Raises OSError (disk full): trying again is allowed, with these events first and in this order. Readers may
        have seen the first of them.
        """
        if not self._file.there:
            raise BatchError(f"the batch's folder {self.folder.parent} was removed while it ran")
        if self.superseded:
            raise BatchError("another broker has opened this batch: only one deployment can run it at a time")
        self._append(events)

    @property
    def superseded(self) -> bool:
        """Any higher number tells it: the next one may have been given back (see `__init__`)."""
        return max(_numbers(self.folder), default=0) > self.number

    def close(self) -> None:
        self._file.close()
