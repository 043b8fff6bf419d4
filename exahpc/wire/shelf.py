"""Files of clients in the deployment's folder: uploads, and what batches made of them.

    files/OWNER/ID.json   FileRecord; a file exists while this does
    files/OWNER/ID        its bytes
    files/OWNER/.ID.part  an upload under way

Each owner has a folder of its own, named by a digest: nobody can name a file of somebody else. Nothing here ever
removes a file that exists; only its owner does.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from exahpc.wire.folder import write_atomic
from exahpc.wire.submissions import FILE_PREFIX, FileRecord, is_file_id, new_id

STALE_SECONDS = 3600.0
"""An upload that was not written to for so long is none any more."""


class Shelf:
    """The files of one owner. folder: the deployment's. Every method may wait for a shared file system."""

    def __init__(self, folder: Path, owner: str) -> None:
        self._root = folder / "files"
        self._path = self._root / hashlib.blake2b(owner.encode(), digest_size=12).hexdigest()

    @staticmethod
    def new_id() -> str:
        return new_id(FILE_PREFIX, int(time.time() * 1000), int.from_bytes(os.urandom(6)))

    def create(self) -> None:
        self._root.mkdir(mode=0o700, exist_ok=True)
        self._path.mkdir(mode=0o700, exist_ok=True)

    def part(self, file: str) -> Path:
        """Where the bytes of a file are gathered."""
        return self._path / f".{file}.part"

    def content(self, file: str) -> Path:
        return self._path / file

    def publish(self, record: FileRecord) -> None:
        """Its bytes lie in `part`, fsynced: from now on it exists. Doing it again replaces it."""
        os.replace(self.part(record.id), self.content(record.id))
        write_atomic(self._record(record.id), msgspec.json.encode(record), durable=True)

    def _record(self, file: str) -> Path:
        return self._path / f"{file}.json"

    def record(self, file: str) -> FileRecord | None:
        if not is_file_id(file):
            return None
        try:
            return msgspec.json.decode(self._record(file).read_bytes(), type=FileRecord)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None

    def ids(self) -> list[str]:
        """Oldest first."""
        return sorted(name[:-5] for name in self._names() if name.endswith(".json") and is_file_id(name[:-5]))

    def _names(self) -> list[str]:
        try:
            return os.listdir(self._path)
        except FileNotFoundError:
            return []

    def usage(self) -> tuple[int, int]:
        """(files, bytes), uploads under way included."""
        files = size = 0
        for name in self._names():
            if is_file_id(name) or name.endswith(".part"):
                with contextlib.suppress(FileNotFoundError):
                    size += (self._path / name).stat().st_size
                    files += 1
        return files, size

    def delete(self, file: str) -> bool:
        """False: there was none."""
        if not is_file_id(file):
            return False
        try:
            self._record(file).unlink()
        except FileNotFoundError:
            return False
        self.content(file).unlink(missing_ok=True)
        return True


def sweep(folder: Path, now: float) -> None:
    """Remove what uploads that were cut off left behind. now: the clock that stamps files."""
    for path in _leftovers(folder / "files"):
        with contextlib.suppress(OSError):
            if now - path.stat().st_mtime > STALE_SECONDS:
                path.unlink()


def _leftovers(root: Path) -> Iterator[Path]:
    """Parts, and bytes without a record."""
    if not root.is_dir():
        return
    for owner in root.iterdir():
        names = set(os.listdir(owner))
        for name in names:
            if name.endswith(".part") or (is_file_id(name) and f"{name}.json" not in names):
                yield owner / name
