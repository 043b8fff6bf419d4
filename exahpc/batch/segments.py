"""Committed rows, rolled into HDF5 files that exist whole or not at all.

`segments/N.h5`: `rows` (a structured array, `columns.ROW`, by row), `custom_id`, `response` and `token_ids` as
data and offsets, and the table `replicas`. The attribute `cursor` says how far commit journals are contained in
segments 1..N: so the last segment tells where to go on. A segment is published with a hard link and never replaces
another, so a client that was thought dead cannot spoil what its successor wrote.
"""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from exahpc.batch.columns import RAGGED, Block, Ragged, Replica, Replicas, packed
from exahpc.batch.committed import Cursor, Journals, Piece, pieces
from exahpc.batch.journal import sync_directory
from exahpc.batch.plan import BatchPlan, Parts
from exahpc.batch.space import Sink, refusal
from exahpc.errors import BatchError

FORMAT, VERSION = "exahpc.batch.segment", 2
SEGMENT_ROWS = 50_000
SEGMENT_BYTES = 256 * 2**20
MOST_SEGMENTS = 256
"""A larger batch has larger segments, as long as SEGMENT_BYTES allows."""
_DATASETS = ("rows", *(f"{name}/{part}" for name in RAGGED for part in ("data", "offsets")))
_TEXT = h5py.string_dtype()


def segment_path(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.h5"


def numbers(folder: Path) -> list[int]:
    """Of all segments in a folder. Raises BatchError when one is missing."""
    found = {int(path.stem) for path in folder.glob("[0-9]*.h5") if path.stem.isdigit()}
    every = range(1, max(found, default=0) + 1)
    for number in every:  # a listing may lack a file that was made while it was read
        if number not in found and not segment_path(folder, number).exists():
            raise BatchError(
                f"{segment_path(folder, number)} is gone, later segments are there: restore it; or remove all "
                f"segments, they are made again from the journals"
            )
    return list(every)


def write_segment(path: Path, block: Block, replicas: Replicas, batch: str, number: int, cursor: Cursor) -> None:
    """Write a complete file, durable. Raises BatchError (NoRoomError when the disk is full)."""
    arrays: dict[str, npt.NDArray[Any]] = {"rows": block.numbers}
    for name, text in block.texts.items():
        arrays[f"{name}/data"], arrays[f"{name}/offsets"] = text.data, text.offsets.astype("<u8")
    sink = Sink(path)
    try:
        with h5py.File(sink, "w") as file:
            for name, values in arrays.items():
                file.create_dataset(name, data=values)
            write_replicas(file, replicas)
            crcs = {name: zlib.crc32(values.tobytes()) for name, values in arrays.items()}
            file.attrs.update(
                format=FORMAT, version=VERSION, batch=batch, number=number, cursor=json.dumps(cursor),
                crc32=json.dumps(crcs),
            )  # fmt: skip
    finally:
        sink.close()


def write_replicas(file: Any, replicas: Replicas) -> None:
    """The table as columns of a group `replicas`."""
    columns = list(zip(*replicas.table, strict=True))
    for name, values in zip(Replica._fields, columns, strict=True):
        file.create_dataset(f"replicas/{name}", data=list(values), dtype="<u4" if name in _COUNTS else _TEXT)


_COUNTS = ("slot", "incarnation")


def read_replicas(file: Any) -> list[Replica]:
    group = file["replicas"]
    columns = [
        group[name][:].tolist() if name in _COUNTS else group[name].asstr()[:].tolist() for name in Replica._fields
    ]
    return [Replica(*values) for values in zip(*columns, strict=True)]


class Segment:
    """One segment, opened for reading. Resident are 4 bytes a row; no descriptor is held.

    rows: row numbers, rising; cursor: see above; replicas: its table.
    """

    def __init__(self, path: Path, batch: str, number: int) -> None:
        """Raises BatchError for a file that is truncated, foreign, or not the segment of this name."""
        self.path = path
        try:
            with h5py.File(path, "r", locking=False) as file:
                self._check(file.attrs, batch, number)
                self.cursor = {int(k): int(v) for k, v in json.loads(file.attrs["cursor"]).items()}
                self.rows = file["rows"].fields("row")[:].astype("<u4")
                self.replicas = read_replicas(file)
                self._crcs = json.loads(file.attrs["crc32"])
                self._places = {
                    name: (file[name].id.get_offset() or 0, file[name].dtype, file[name].shape[0])
                    for name in _DATASETS
                }
        except (OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
            raise self._unusable(f"cannot be read ({error})") from error

    def _check(self, attributes: Any, batch: str, number: int) -> None:
        if attributes.get("format") != FORMAT or attributes.get("version") != VERSION:
            raise self._unusable("is not a segment of this version of exahpc")
        if attributes["batch"] != batch:
            raise self._unusable(f"belongs to {attributes['batch']}, not to {batch}")
        if attributes["number"] != number:
            raise self._unusable(f"was written as number {attributes['number']}")

    def _unusable(self, why: str) -> BatchError:
        return BatchError(
            f"segment {self.path} {why}: remove all files in {self.path.parent}, they are made again from journals"
        )

    def verify(self) -> None:
        """Compare all bytes with their checksums. Raises BatchError."""
        with open(self.path, "rb", buffering=0) as file:
            for name, (start, kind, count) in self._places.items():
                crc, left = 0, count * kind.itemsize
                file.seek(start)
                while left and (data := file.read(min(left, 1 << 20))):
                    crc, left = zlib.crc32(data, crc), left - len(data)
                if crc != self._crcs.get(name):
                    raise self._unusable(f"is damaged (in {name})")

    def read(self, low: int, high: int, most_bytes: int) -> Block | None:
        """Rows at places [low, high); None when their texts are longer than `most_bytes`."""
        with open(self.path, "rb", buffering=0) as file:
            offsets = {
                name: self._part(file, f"{name}/offsets", low, high + 1).astype(np.int64) for name in RAGGED
            }
            size = sum(int(o[-1] - o[0]) * np.dtype(RAGGED[name]).itemsize for name, o in offsets.items())
            if size > most_bytes:
                return None
            texts = {
                name: Ragged(self._part(file, f"{name}/data", int(o[0]), int(o[-1])), o - o[0])
                for name, o in offsets.items()
            }
            return Block(self._part(file, "rows", low, high), texts)

    def _part(self, file: Any, name: str, low: int, high: int) -> npt.NDArray[Any]:
        start, kind, _ = self._places[name]
        data = os.pread(file.fileno(), (high - low) * kind.itemsize, start + low * kind.itemsize)
        if len(data) != (high - low) * kind.itemsize:
            raise self._unusable("is shorter than it was")
        return np.frombuffer(data, kind)


class Roller:
    """Writes segments. One at a time for a folder (see `client`); may be killed at any moment."""

    def __init__(
        self,
        parts: Parts,
        plan: BatchPlan,
        most_rows: int | None = None,
        beat: Callable[[], None] = lambda: None,
        into: Path | None = None,
    ) -> None:
        """most_rows: of a segment; beat: called before each segment is published, raises when this client was
        replaced; into: where new segments are written, if not beside those that are there."""
        parts.check_order(plan)
        self._parts, self._plan, self._beat = parts, plan, beat
        self._most = most_rows or max(SEGMENT_ROWS, -(-plan.rows // MOST_SEGMENTS))
        self._folder, self._next = into or parts.segments, 1
        self._journals = Journals(parts)
        self._seen = np.zeros(plan.rows, bool)
        self._cursor: Cursor = {}
        for number in numbers(parts.segments):
            segment = Segment(segment_path(parts.segments, number), plan.batch, number)
            self._seen[segment.rows] = True
            self._cursor = segment.cursor
            self._next = number + 1 if into is None else 1
        for path in self._folder.glob(".*.tmp"):
            path.unlink(missing_ok=True)

    @property
    def rolled(self) -> int:
        """Rows in segments."""
        return int(np.count_nonzero(self._seen))

    def roll(self, everything: bool = False) -> int:
        """Write every segment that is full (everything: and the last one). Returns the rows written.

        Raises BatchError; NoRoomError when the disk is full: then a later call goes on.
        """
        gathered: list[Piece] = []
        rows = size = written = 0
        cursor = dict(self._cursor)
        try:
            for piece in pieces(self._parts, self._plan, self._cursor):
                gathered.append(piece)
                cursor[piece.number] = piece.upto
                rows, size = rows + piece.size, size + piece.end - piece.start
                if rows >= self._most or size >= SEGMENT_BYTES:
                    written += self._write(gathered, dict(cursor))
                    gathered, rows, size = [], 0, 0
            if everything and gathered:
                written += self._write(gathered, cursor)
        except OSError as error:
            raise refusal(error, self._folder) from error
        finally:
            self._journals.close()
        return written

    def _write(self, gathered: list[Piece], cursor: Cursor) -> int:
        records = [record for piece in gathered for record in self._journals.records(piece)]
        rows = self._parts.rows_of([record.row for record in records])
        _, first = np.unique(rows, return_index=True)  # in order of rows
        fresh = first[~self._seen[rows[first]]]
        if len(fresh):
            replicas = Replicas()
            block = packed([records[i] for i in fresh.tolist()], rows[fresh], replicas)
            self._publish(block, replicas, cursor)
            self._seen[rows[fresh]] = True
            self._next += 1
        self._cursor = cursor
        return len(fresh)

    def _publish(self, block: Block, replicas: Replicas, cursor: Cursor) -> None:
        path = segment_path(self._folder, self._next)
        temporary = self._folder / f".{self._next:06d}.{os.getpid()}.tmp"
        try:
            write_segment(temporary, block, replicas, self._plan.batch, self._next, cursor)
            self._beat()
            publish(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def publish(temporary: Path, path: Path) -> None:
    """Make a complete, durable file appear under a name that must be free. Raises BatchError when it is taken."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise BatchError(f"{path} exists already: another `exahpc batch run` works on this output") from None
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise
        os.rename(temporary, path)  # no hard links on this file system
    sync_directory(path.parent)
