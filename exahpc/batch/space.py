"""What to say when a file system has no room, and a file that HDF5 can safely run out of room on."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from exahpc.errors import BatchError

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
AGAIN = "then run the same command again"
BY_ITSELF = "then it goes on by itself"


class NoRoomError(BatchError):
    """The disk or a quota is full. What was done is kept; the same action succeeds when there is room."""

    def __init__(self, what: str, then: str = AGAIN) -> None:
        """what: could not be written; then: what makes the work go on when there is room."""
        super().__init__(f"{what}: make room (or raise the quota), {then}; nothing that was done is lost")
        self._what = what

    def but(self, then: str) -> NoRoomError:
        """The same, told where something else makes the work go on."""
        return NoRoomError(self._what, then)


def is_full(error: Exception) -> bool:
    """Whether the same action succeeds when there is room."""
    return isinstance(error, NoRoomError) or (isinstance(error, OSError) and error.errno in NO_ROOM)


def refusal(error: OSError, path: Path, then: str = AGAIN) -> BatchError:
    """An error of the file system, as the user is told it: which path, what is wrong, what to do.

    then: what makes the work go on when there is room.
    """
    if error.errno not in NO_ROOM:
        return BatchError(f"{path} cannot be used: {error.strerror or error}")
    free = _free(path)
    left = "" if free is None else f", {free / 2**20:.0f} MiB are free there for this user"
    return NoRoomError(f"no room to write {path} ({os.strerror(error.errno or 0)}{left})", then)


def _free(path: Path) -> int | None:
    try:
        found = os.statvfs(path if path.exists() else path.parent)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def left_behind(path: Path, kind: str) -> list[Path]:
    """What processes that made or removed `path` have beside it, `.NAME.PID.kind`: also those that were killed."""
    name = re.compile(rf"\.{re.escape(path.name)}\.\d+\.{kind}")
    return [path.parent / found for found in os.listdir(path.parent) if name.fullmatch(found)]


@contextmanager
def whole(target: Path) -> Iterator[BinaryIO]:
    """A file to write, 0600, that is at `target` when the block ends well and nowhere else. Raises BatchError,
    NoRoomError when the disk is full."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with os.fdopen(os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        raise refusal(error, target) from error
    finally:
        temporary.unlink(missing_ok=True)


class Sink:
    """A new file for `h5py.File(sink, "w")`, 0600.

    HDF5 leaks descriptors, and crashes at exit, after a write that failed. So it never sees one: the first failure
    is kept, later bytes are dropped, and `check` raises it. Nothing may be believed that was not checked.
    """

    def __init__(self, path: Path) -> None:
        """Raises BatchError when it cannot be made."""
        self.path = path
        try:
            self._fd = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o600)
        except OSError as error:
            raise refusal(error, path) from error
        self._at = 0
        self._error: OSError | None = None

    def check(self) -> None:
        """Raises BatchError (NoRoomError) when a byte was lost."""
        if self._error is not None:
            raise refusal(self._error, self.path) from self._error

    def close(self) -> None:
        """Make all bytes durable. Raises BatchError when one was lost."""
        if self._fd < 0:
            return
        try:
            if self._error is None:
                os.fsync(self._fd)
        except OSError as error:
            self._error = error
        finally:
            os.close(self._fd)
            self._fd = -1
        self.check()

    # --- what HDF5 calls ---

    def write(self, data: Any) -> int:
        left, at = memoryview(data), self._at
        size = len(left)
        try:
            while self._error is None and left:
                done = os.pwrite(self._fd, left, at)
                left, at = left[done:], at + done
        except OSError as error:
            self._error = error
        self._at += size
        return size

    def readinto(self, buffer: Any) -> int:
        done = os.preadv(self._fd, [buffer], self._at)
        self._at += done
        return done

    def read(self, size: int = -1) -> bytes:
        data = os.pread(self._fd, size if size >= 0 else os.fstat(self._fd).st_size, self._at)
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: os.fstat(self._fd).st_size}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def truncate(self, size: int | None = None) -> int:
        size = self._at if size is None else size
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            self._error = self._error or error
        return size

    def flush(self) -> None:
        """Nothing is buffered here."""
