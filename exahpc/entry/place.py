"""File locks by which the entries that share a port know of each other.

Those of the head share one, and those beside one agent share one. The files lie in the node-local runtime
directory. Every living entry holds a shared lock on one of them, so who gets it alone is the first, or the last.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from exahpc.wire.folder import Endpoint, Folder, write_atomic


class Place:
    """beside: "POOL/TASK" of the agent that these entries stand beside, "" for those of the head."""

    def __init__(self, folder: Folder, directory: Path, beside: str) -> None:
        self.directory = directory
        self.stem = f"entry-{beside.replace('/', '-')}" if beside else "entry"
        self._folder, self._beside = folder, beside
        self._alive = -1

    @contextlib.contextmanager
    def deciding(self) -> Iterator[None]:
        """Only one entry of the place at a time is in here."""
        path = self._file("deciding")
        while True:
            self.directory.mkdir(mode=0o700, exist_ok=True)
            fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.fstat(fd).st_ino == path.stat().st_ino:
                    break
            os.close(fd)  # the last one removed it while we waited
        try:
            yield
        finally:
            os.close(fd)

    def enter(self) -> bool:
        """Join; only while deciding. True: no other entry lives."""
        fd = os.open(self._file("alive"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            first = True
        except BlockingIOError:
            first = False
        fcntl.flock(fd, fcntl.LOCK_SH)
        self._alive = fd
        return first

    def endpoint(self) -> Endpoint | None:
        """What the first one published, also when it has died since."""
        if not self._beside:
            return self._folder.endpoint()
        try:
            return msgspec.json.decode(self._file("json").read_bytes(), type=Endpoint)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def publish(self, endpoint: Endpoint) -> None:
        """Of the head: for everybody. Beside an agent: for siblings; all others hear it from the broker."""
        if self._beside:
            write_atomic(self._file("json"), msgspec.json.encode(endpoint))
        else:
            self._folder.publish_endpoint(endpoint)

    def leave(self) -> None:
        """The last one removes the files, and the directory if nothing else is in it."""
        with self.deciding():
            try:
                fcntl.flock(self._alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for path in self.directory.glob(f"{self.stem}.*"):
                    path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    self.directory.rmdir()
            except BlockingIOError:
                pass
            os.close(self._alive)

    def _file(self, kind: str) -> Path:
        return self.directory / f"{self.stem}.{kind}"
