"""The broker's journal: `journal/epoch-N.jsonl`, one line a record, each with its CRC. No database, no locks.

A line is eight hex digits (CRC-32 of the rest), a space, and the record as JSON. A torn or spoilt line is skipped
and counted. The first thing in each file is all that its broker took over, ended by `Started`: so the newest file
that has one tells everything, and a broker that was cut off cannot change what its successor has taken over.

Writing happens on one thread in order; the loop never waits for the disk unless it awaits `durable`.
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

from exahpc.broker.memory import AnyRecord, Memory, Started, not_after

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(AnyRecord)
_KEPT_FILES = 4
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
        """takeover: the replayed state as records; written, with `started` behind it, before this returns."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._buffer: list[bytes] = []
        self._flushing = False
        self._torn = False
        path = directory / f"epoch-{epoch:08d}.jsonl"
        self._fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_WRONLY, 0o600)
        self._write(b"".join(encode(record) for record in (*takeover, started)), sync=True)
        for _, old in _files(directory)[:-_KEPT_FILES]:
            old.unlink(missing_ok=True)

    def append(self, record: AnyRecord) -> None:
        """Write soon (within one turn of the disk). A failure is logged: agents tell a new broker most of it."""
        self._buffer.append(encode(record))
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().create_task(self._flush())

    async def durable(self, record: AnyRecord) -> None:
        """Write, and return when it is on disk. Raises OSError."""
        self._buffer.append(encode(record))
        await self._hand_over(sync=True)

    async def _flush(self) -> None:
        try:
            while self._buffer:
                await self._hand_over(sync=False)
        except OSError as error:
            _log.error("the journal cannot be written: %s", error)
        finally:
            self._flushing = False

    async def _hand_over(self, *, sync: bool) -> None:
        data, self._buffer = b"".join(self._buffer), []
        await asyncio.get_running_loop().run_in_executor(self._thread, lambda: self._write(data, sync=sync))

    def _write(self, data: bytes, *, sync: bool) -> None:
        view = memoryview(b"\n" + data if self._torn else data)
        self._torn = True  # until all is written: a half line must not spoil the next one
        while view:
            view = view[os.write(self._fd, view) :]
        self._torn = False
        if sync:
            os.fsync(self._fd)

    def close(self) -> None:
        """Write what is left and close."""
        self._thread.shutdown(wait=True)
        self._write(b"".join(self._buffer), sync=True)
        self._buffer = []
        os.close(self._fd)
