"""Sizes and checksums of a folder's files, in `exahpc-manifest.json` beside them.

A copy on a node always has one: it is written last, so its presence means that the copy was finished. A checkpoint
on the shared file system may have one (`exahpc model seal`); then what is read from it is held against it. CRC-32
finds accidents (cut transfers, bad memory, bad disks), not malice; it is the fastest that Python ships.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from exahpc.errors import DeploymentError

NAME = "exahpc-manifest.json"
CHUNK = 16 * 2**20
"""Bytes of one read."""
_READERS = 4


class Sum(msgspec.Struct, frozen=True):
    size: int
    crc: int


class Manifest(msgspec.Struct, frozen=True):
    files: dict[str, Sum]

    def encode(self) -> bytes:
        return msgspec.json.encode(self)


class Summing:
    """The sum of a file whose bytes come piece by piece."""

    def __init__(self) -> None:
        self._size = self._crc = 0

    def add(self, data: bytes | memoryview) -> None:
        self._size += len(data)
        self._crc = zlib.crc32(data, self._crc)

    @property
    def sum(self) -> Sum:
        return Sum(self._size, self._crc)


def chunks(file: Path) -> Iterator[memoryview]:
    """The bytes of a file, read in order and once; each piece is good until the next is asked for."""
    buffer = bytearray(CHUNK)
    view = memoryview(buffer)
    with file.open("rb", buffering=0) as opened:
        while count := opened.readinto(buffer):
            yield view[:count]


def make(folder: Path, names: Iterable[str]) -> Manifest:
    """Read these files, some at a time. Raises OSError."""

    def one(name: str) -> Sum:
        summing = Summing()
        for piece in chunks(folder / name):
            summing.add(piece)
        return summing.sum

    names = list(names)
    with ThreadPoolExecutor(_READERS) as pool:
        return Manifest(dict(zip(names, pool.map(one, names), strict=True)))


def read(folder: Path) -> Manifest | None:
    """None when there is none. Raises DeploymentError when it is damaged."""
    try:
        return msgspec.json.decode((folder / NAME).read_bytes(), type=Manifest)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise DeploymentError(f"{folder / NAME} is damaged ({error}): remove it") from None


def sizes_fit(folder: Path, manifest: Manifest) -> bool:
    """The quick look: every file is there in full length."""
    try:
        return all((folder / name).stat().st_size == its.size for name, its in manifest.files.items())
    except OSError:
        return False


def fits(folder: Path, manifest: Manifest) -> bool:
    """The thorough look: every byte is read."""
    try:
        return sizes_fit(folder, manifest) and make(folder, manifest.files) == manifest
    except OSError:
        return False


def check(found: Manifest, told: Manifest, folder: str) -> None:
    """Hold what was read from `folder` against its manifest. Raises DeploymentError naming the file."""
    for name, its in found.files.items():
        if name in told.files and told.files[name] != its:
            raise DeploymentError(
                f"model.path = {folder!r}: {name} is not as {NAME} says: it is damaged, copy it again; if it was "
                f"changed on purpose, run `exahpc model seal` again"
            )
