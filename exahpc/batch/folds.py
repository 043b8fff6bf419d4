"""What the commit journals came to at one point, in one file, so that a broker need not read them from the start.

`commits/N.fold` is one frame (see `journal`): a `Fold` of everything that counts up to byte `end` of commit
journal N. It is only a shortcut: a fold that is missing, foreign or damaged costs time, never a row. It is written
beside and renamed, after the events that it holds were fsynced.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from exahpc.batch.intervals import Columns, Intervals
from exahpc.batch.journal import MAGIC, FrameReader, frame
from exahpc.wire.folder import write_atomic

log = logging.getLogger(__name__)

VERSION = 1


class LeaseState(msgspec.Struct, frozen=True, array_like=True):
    """An open lease: see `book.Lease`."""

    lease: int
    agent: str
    first: int
    last: int
    held: Columns
    alone: bool


class BookState(msgspec.Struct, frozen=True, array_like=True):
    """All that a `Book` is made of."""

    rows: int
    ok: int
    failed: int
    pending: Columns
    isolated: Columns
    leases: list[LeaseState]
    blamed: list[Columns]


class Fold(msgspec.Struct, frozen=True):
    """book: after the last event before byte `end` of commit journal `number`; committed: the bytes of journals
    that commits have named until then."""

    batch: str
    number: int
    end: int
    book: BookState
    committed: dict[str, Columns]
    version: int = VERSION


def _path(commits: Path, number: int) -> Path:
    return commits / f"{number:06d}.fold"


def write(commits: Path, fold: Fold) -> int:
    """Replace the fold of this commit journal; returns its size in bytes. Blocking; raises OSError."""
    data = MAGIC + frame(msgspec.msgpack.encode(fold))
    write_atomic(_path(commits, fold.number), data, durable=True)
    for name in os.listdir(commits):  # those of earlier brokers are of no use any more
        number, _, kind = name.partition(".")
        if kind == "fold" and number.isdigit() and int(number) < fold.number:
            (commits / name).unlink(missing_ok=True)
    return len(data)


def newest(commits: Path, batch: str, accepted: list[tuple[int, int | None]]) -> Fold | None:
    """The fold that covers most of what counts. accepted: as `commits.accepted` tells."""
    for number, limit in reversed(accepted):
        path = _path(commits, number)
        try:
            reader: FrameReader[Fold] = FrameReader(path, Fold)
        except FileNotFoundError:
            continue
        try:
            fold = next((value for _, _, value in reader.frames()), None)
        finally:
            reader.close()
        written = (commits / f"{number:06d}").stat().st_size if limit is None else limit
        if fold is None or (fold.batch, fold.number, fold.version) != (batch, number, VERSION):
            log.warning("%s is damaged or not of batch %s: the commit journals are read instead", path, batch)
        elif fold.end > written:
            log.warning("%s knows %d bytes, of which %d count: not used", path, fold.end, written)
        else:
            return fold
    return None


def columns_of(committed: dict[str, Intervals]) -> dict[str, Columns]:
    """A copy that other threads may read."""
    return {name: ranges.columns() for name, ranges in committed.items()}
