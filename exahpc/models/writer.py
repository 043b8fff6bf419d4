"""Writes the files of a copy, sums included; the counterpart of `produce.pieces`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from exahpc.errors import DeploymentError
from exahpc.models import manifest
from exahpc.models.manifest import Manifest, Summing


class Writer:
    """Writes the files of a copy piece by piece, each whole before the next begins."""

    def __init__(self, part: Path) -> None:
        self._part = part
        with _told(part):
            part.mkdir(mode=0o700)
        self._fd: int | None = None
        self._sums: dict[str, Summing] = {}

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Raises DeploymentError when the disk is full or broken."""
        with _told(self._part / name):
            if name not in self._sums:
                self._close()
                self._fd = os.open(self._part / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
                self._sums[name] = Summing()
            self._sums[name].add(data)
            assert self._fd is not None
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]

    def done(self) -> Manifest:
        """Raises DeploymentError when a file is not as long as what was written to it."""
        with _told(self._part):
            self._close()
        made = Manifest({name: summing.sum for name, summing in self._sums.items()})
        if not manifest.sizes_fit(self._part, made):
            raise DeploymentError(f"{self._part} did not keep what was written to it: is it sound?")
        return made

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DeploymentError(f"cannot write {path}: {error.strerror or error}") from None
