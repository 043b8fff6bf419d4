"""Append-only files of framed records: what is in them is whole, or is not there.

A journal is full at JOURNAL_BYTES: its agent begins the next one, and never writes to it again.

File: 8 bytes of magic, then frames: u32 length, u32 CRC-32 of the length's bytes and the payload (both
little-endian), payload (MessagePack). Reading stops at the first frame that is torn or damaged. A range of
bytes that was fsynced and reported never changes, so a reader given [start, end) needs nothing else.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from exahpc.errors import BatchError

MAGIC = b"EXAJRNL1"
HEAD = struct.Struct("<II")
JOURNAL_BYTES = 256 * 2**20
_LONGEST = 1 << 30  # a length beyond this is damage, not data
_CHUNK = 1 << 20

T = TypeVar("T")


class Run(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How a row was run.

    slot, incarnation, node, version: of the replica; times in Unix seconds: queued (its agent chose a replica for
    it), started (that replica got it), first_token, ended; cached_tokens: of the prompt, not computed anew;
    token_ids: of the first choice as drawn, little-endian u32.
    """

    slot: int
    incarnation: int
    node: str
    version: str
    queued: float
    started: float
    first_token: float
    ended: float
    cached_tokens: int
    token_ids: bytes


class Record(msgspec.Struct, frozen=True, array_like=True):
    """One ended row.

    row: number among the non-blank lines, from 0; line: its line in the input, from 1; custom_id: UTF-8 (lone
    surrogates as their three bytes), None when the line gave none; status: HTTP status (200: `body` is the
    response, otherwise OpenAI's error body); agent: "<pool>-<task>" of the agent that ran it; run: None when it
    reached no replica.
    """

    row: int
    line: int
    status: int
    custom_id: bytes | None
    body: bytes
    prompt_tokens: int
    completion_tokens: int
    lease: int
    epoch: int
    agent: str
    run: Run | None = None


def frame(payload: bytes) -> bytes:
    length = len(payload).to_bytes(4, "little")
    return length + zlib.crc32(payload, zlib.crc32(length)).to_bytes(4, "little") + payload


class FrameWriter:
    """Appends frames to a file of its own. Every method may block: call it off the event loop."""

    def __init__(self, path: Path) -> None:
        """Creates `path`, 0600; FileExistsError when it is there: a file has one writer in its life."""
        self.path = path
        self._fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        self.end = 0
        try:
            self._put(MAGIC)
            sync_directory(path.parent)
        except OSError:
            self.discard()
            raise

    def _put(self, data: bytes) -> tuple[int, int]:
        """Write at the known end: what a failed attempt left behind is overwritten by the next one."""
        start, view = self.end, memoryview(data)
        while view:
            view = view[os.pwrite(self._fd, view, start + len(data) - len(view)) :]
        self.end = start + len(data)
        return start, self.end

    def append(self, payloads: Sequence[bytes]) -> tuple[int, int]:
        """Write frames, all or none counted; returns their byte range. They are safe only after `sync`.

        Raises OSError (disk full, quota); trying again is allowed.
        """
        return self._put(b"".join(map(frame, payloads)))

    def sync(self) -> None:
        """Force all appended frames to disk. After an OSError here the file must be given up, or all that was
        appended since the last success written again, from `end` as it was then."""
        os.fdatasync(self._fd)

    @property
    def there(self) -> bool:
        """Whether the file still has its name: what is written to a removed one is lost."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._fd))
        except FileNotFoundError:
            return False

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def discard(self) -> None:
        """Remove a file that nothing was written to: retries on a full disk must not leave one each."""
        self.close()
        self.path.unlink(missing_ok=True)


class FrameReader(Generic[T]):
    """Reads frames of one type from byte ranges of one file, in chunks: memory does not grow with the file."""

    def __init__(self, path: Path, kind: Any) -> None:
        self.path = path
        self._decode = msgspec.msgpack.Decoder(kind).decode
        self._file = open(path, "rb")  # noqa: SIM115 - closed by close()
        self.good = self._file.read(len(MAGIC)) == MAGIC

    def frames(self, start: int = len(MAGIC), end: int | None = None) -> Iterator[tuple[int, int, T]]:
        """(start, end, value) of each frame in [start, end), up to the first that is torn or damaged."""
        if not self.good:
            return
        position, buffer, done = max(start, len(MAGIC)), b"", False
        at = 0  # read position inside buffer
        while True:
            need = HEAD.size
            if len(buffer) - at >= need:
                length, crc = HEAD.unpack_from(buffer, at)
                if length > _LONGEST:
                    return
                need += length
                if len(buffer) - at >= need:
                    payload = buffer[at + HEAD.size : at + need]
                    if zlib.crc32(payload, zlib.crc32(buffer[at : at + 4])) != crc:
                        return
                    try:
                        value = self._decode(payload)
                    except msgspec.MsgspecError:
                        return
                    if end is not None and position + need > end:
                        return
                    yield position, position + need, value
                    position, at = position + need, at + need
                    continue
            if done:
                return
            want = max(_CHUNK, need - (len(buffer) - at))
            if end is not None:
                want = min(want, end - position - (len(buffer) - at))
            more = os.pread(self._file.fileno(), want, position + len(buffer) - at) if want > 0 else b""
            done = not more
            buffer, at = buffer[at:] + more, 0

    def exactly(self, start: int, end: int) -> Iterator[tuple[int, int, T]]:
        """Like `frames`, but the range was promised: raises BatchError when a part of it cannot be read."""
        reached = start
        for found in self.frames(start, end):
            reached = found[1]
            yield found
        if reached != end:
            raise BatchError(
                f"{self.path} is damaged at byte {reached}: committed results [{start}, {end}) cannot be read; "
                f"restore the file, or remove the .parts folder and run the batch again"
            )

    def one(self, start: int) -> T:
        """The frame that begins at `start`. Raises BatchError when it is damaged."""
        fd = self._file.fileno()
        head = os.pread(fd, HEAD.size, start)
        if len(head) == HEAD.size:
            length, crc = HEAD.unpack(head)
            payload = os.pread(fd, length, start + HEAD.size) if length <= _LONGEST else b""
            if len(payload) == length and zlib.crc32(payload, zlib.crc32(head[:4])) == crc:
                value: T = self._decode(payload)
                return value
        raise BatchError(f"{self.path} is damaged at byte {start}: restore the file, or run the batch again")

    @property
    def size(self) -> int:
        """Bytes in the file now."""
        return os.fstat(self._file.fileno()).st_size

    def sync(self) -> None:
        """Force what this node knows of the file to disk, whoever wrote it."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def create_journal(folder: Path, name: str, batch: str) -> FrameWriter:
    """A new journal `name`-N of one batch. Its first frame names the batch; records follow. Raises OSError."""
    number = 1
    while True:
        try:
            writer = FrameWriter(folder / f"{name}-{number}")
            break
        except FileExistsError:
            number += 1
    try:
        writer.append([msgspec.msgpack.encode(batch)])
    except OSError:
        writer.discard()
        raise
    return writer


def journal_batch(path: Path) -> tuple[str | None, int]:
    """(batch that a journal belongs to, byte where its records begin); (None, 0) for what is no journal, or was
    only just begun. Raises FileNotFoundError."""
    reader: FrameReader[str] = FrameReader(path, str)
    try:
        first = next(reader.frames(), None)
    finally:
        reader.close()
    return (first[2], first[1]) if first is not None else (None, 0)


def sync_directory(path: Path) -> None:
    """Make a new name in this directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def error_body(message: str, *, kind: str = "server_error", code: str | None = None) -> bytes:
    """OpenAI's error object for a row that never reached a replica."""
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": code}})
