"""The broker's journal: `journal/epoch-N.jsonl`, one line a record, each with its CRC. No database, no locks.

A line is eight hex digits (CRC-32 of the rest), a space, and the record as JSON. A torn or spoilt line is skipped
and counted. The first thing in each file is all that its broker took over, ended by `Started`: so the newest file
that has one tells everything, and a broker that was cut off cannot change what its successor has taken over.

Writing happens on one thread in order; the loop never waits for the disk unless it awaits `durable`. What finds no
room on a full disk waits in memory, in order, and is tried again.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from exahpc.batch.space import NO_ROOM
from exahpc.broker.memory import AnyRecord, Memory, Started, not_after

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(AnyRecord)
_KEPT_FILES = 4
_AGAIN_SECONDS = 2.0
_log = logging.getLogger(__name__)


def encode(record: AnyRecord) -> bytes:
    """One line."""
    body = _ENCODER.encode(record)
    return b"%08x %s\n" % (zlib.crc32(body), body)


def decode(data: bytes) -> tuple[list[AnyRecord], int]:
    """The good records of a file in order, and how many lines were not good."""
    records: list[AnyRecord] = []
    bad = 0
    for line in data.split(b"\n"):
        if not line:
            continue
        try:
            if len(line) < 10 or int(line[:8], 16) != zlib.crc32(line[9:]):
                raise ValueError(line)
            records.append(_DECODER.decode(line[9:]))
        except (ValueError, msgspec.MsgspecError):
            bad += 1
    return records, bad


def _files(directory: Path) -> list[tuple[int, Path]]:
    """(epoch, path), oldest first."""
    found = []
    for path in directory.glob("epoch-*.jsonl"):
        number = path.stem.removeprefix("epoch-")
        if number.isdigit():
            found.append((int(number), path))
    return sorted(found)


def replay(directory: Path, now: float = math.inf) -> Memory:
    """The state that all earlier brokers left behind. What a clock wrote that was ahead of ours counts as of now:
    nobody may wait for the difference."""
    memory = Memory()
    for _, path in reversed(_files(directory)):
        records, bad = decode(path.read_bytes())
        if not any(isinstance(record, Started) for record in records):
            continue  # its broker died while taking over, before it did anything
        if bad:
            _log.warning("%s: %d spoilt lines are left out (a torn last line is normal)", path.name, bad)
        for record in records:
            memory.apply(not_after(record, now))
        break
    return memory


class Journal:
    """Appends to this epoch's file. Raises OSError from the constructor when the folder cannot be written."""

    def __init__(self, directory: Path, epoch: int, takeover: Iterable[AnyRecord], started: Started) -> None:
        """takeover: the replayed state as records; written, with `started` behind it, before this returns. On an
        OSError nothing is left of it."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._buffer: list[bytes] = []
        self._flushing = self._full = False
        self._left = b""  # of the thread: what is not written yet
        path = directory / f"epoch-{epoch:08d}.jsonl"
        self._fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_WRONLY, 0o600)
        try:
            full = self._write(b"".join(encode(record) for record in (*takeover, started)), sync=True)
            if full is not None:
                raise full
        except OSError:
            os.close(self._fd)
            path.unlink(missing_ok=True)
            raise
        for _, old in _files(directory)[:-_KEPT_FILES]:
            old.unlink(missing_ok=True)

    def append(self, record: AnyRecord) -> None:
        """Write soon (within one turn of the disk). A failure is logged: agents tell a new broker most of it."""
        self._buffer.append(encode(record))
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().create_task(self._flush())

    async def durable(self, record: AnyRecord) -> None:
        """Write, and return when it is on disk, be it after hours on a full one. Raises OSError."""
        self._buffer.append(encode(record))
        while not await self._hand_over(sync=True):
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _flush(self) -> None:
        try:
            while self._buffer or self._full:
                if not await self._hand_over(sync=False):
                    await asyncio.sleep(_AGAIN_SECONDS)
        except OSError as error:
            _log.error("the journal cannot be written: %s", error)
        finally:
            self._flushing = False

    async def _hand_over(self, *, sync: bool) -> bool:
        """Whether there was room for all that is due."""
        data, self._buffer = b"".join(self._buffer), []
        loop = asyncio.get_running_loop()
        full = await loop.run_in_executor(self._thread, lambda: self._write(data, sync=sync))
        if full is not None and not self._full:
            _log.error("the journal waits for room on the disk: %s", full)
        self._full = full is not None
        return not self._full

    def _write(self, data: bytes, *, sync: bool) -> OSError | None:
        """Why there is no room for all of it. Raises other OSErrors, and those of the sync: what was lost then is
        not known."""
        self._left += data
        done = 0
        try:
            while done < len(self._left):
                done += os.write(self._fd, self._left[done:])
        except OSError as error:
            begun = self._left.rfind(b"\n", 0, done) + 1  # of a line: half of it must not spoil the whole one
            self._left = b"\n" + self._left[begun:].lstrip(b"\n")
            if error.errno in NO_ROOM:
                return error
            raise
        self._left = b""
        if sync:
            os.fsync(self._fd)
        return None

    def close(self) -> None:
        """Write what is left and close. What finds no room is lost: agents tell the next broker most of it."""
        self._thread.shutdown(wait=True)
        try:
            lost = self._write(b"".join(self._buffer), sync=True)
        except OSError as error:
            lost = error
        if lost is not None:
            _log.error("the end of the journal cannot be written: %s", lost)
        self._buffer = []
        os.close(self._fd)
