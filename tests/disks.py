"""A disk that is full, for whoever writes by `os.pwrite`."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

ROOM = 1 << 60


class Disk:
    """Has room for `left` more bytes. syncs: it takes all, and tells that it is full at the sync."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left, self.syncs = ROOM, False
        self._pwrite, self._sync = os.pwrite, os.fdatasync
        monkeypatch.setattr(os, "pwrite", self.pwrite)
        monkeypatch.setattr(os, "fdatasync", self.fdatasync)

    def pwrite(self, fd: int, data: Any, offset: int) -> int:
        size = min(self.left, len(memoryview(data)))
        if not size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.left -= size
        return self._pwrite(fd, memoryview(data)[:size], offset)

    def fdatasync(self, fd: int) -> None:
        if self.syncs:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        self._sync(fd)
