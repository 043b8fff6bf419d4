"""Copies of weights on one node, shared by all processes of one user: found, made, held, and removed when unused.

Layout of a store (0700; files 0600), KEY names a checkpoint in one form (`Source.key`):

    KEY/            a finished copy: the files and their manifest
    KEY.part/       a copy in the making
    KEY.gone/       a copy on its way out
    KEY.lock        its holder makes, checks or removes KEY

Two locks (flock, so they end with their holder, however it dies): KEY.lock, exclusive, for changes; the manifest
inside KEY, shared, for as long as a process uses the copy. Who removes needs both. Names appear and vanish by
rename, and what a process has mapped stays until it ends: nobody ever reads a half-made or half-removed copy.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import stat
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from exahpc.deployment.units import memory
from exahpc.errors import DeploymentError
from exahpc.models import manifest
from exahpc.models.manifest import Manifest
from exahpc.models.writer import Writer

log = logging.getLogger(__name__)

DEFAULT = "/tmp"
"""Where converted weights go when `model.stage` names no directory."""
DIRECTORY = "EXAHPC_STAGE"
"""Environment variable of a replica step: the directory that its agent found `model.stage` to be."""
PREFIX = "exahpc-weights-"
"""Begin of a store's name; the user's number follows."""
_UNFIT = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


def directory(stage: str | None, environment: Mapping[str, str]) -> Path:
    """`model.stage` on this node, its variables filled in. Raises DeploymentError when it is not there."""
    try:
        found = Path(string.Template(stage or DEFAULT).substitute(environment))
    except (KeyError, ValueError) as error:
        raise DeploymentError(
            f"model.stage = {stage!r}: {error} is not set on this node: set it, or name another directory"
        ) from None
    if not found.is_absolute() or not found.is_dir():
        raise DeploymentError(
            f"model.stage = {stage!r}: this node has no directory {str(found)!r}: make it, or name another"
        )
    return found


class Held:
    """A copy in use: `sweep` leaves it alone until `close` or the end of the process."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path, self._fd = path, fd

    def close(self) -> None:
        os.close(self._fd)


class Store:
    """The copies below one directory of this node."""

    def __init__(self, where: Path) -> None:
        self.path = where / f"{PREFIX}{os.getuid()}"

    def claim(self, key: str) -> Claim | None:
        """The right to make or check copy `key`; None while another process has it.

        Raises DeploymentError when the directory cannot be written, has no locks or belongs to somebody else.
        """
        try:
            while True:
                self._own()
                with contextlib.suppress(FileNotFoundError):  # swept away since
                    fd = _lock(self.path / f"{key}.lock")
                    return None if fd is None else Claim(self, key, fd)
        except OSError as error:
            hint = "a shared file system? name a local directory" if error.errno in _UNFIT else error.strerror
            raise DeploymentError(f"model.stage: {self.path} cannot be used: {hint}") from None

    def _own(self) -> None:
        found = None
        while found is None:
            self.path.mkdir(mode=0o700, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # swept away since
                found = self.path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise DeploymentError(
                f"{self.path} is not a private directory of this user: remove it, or ask who made it"
            )

    def progress(self, key: str) -> int:
        """Bytes of copy `key` that its maker has written."""
        with contextlib.suppress(OSError):
            return sum(entry.stat().st_size for entry in os.scandir(self.path / f"{key}.part"))
        return 0

    def sweep(self) -> list[str]:
        """Remove every copy that nobody uses, and what dead makers left behind; returns the names of copies."""
        removed = []
        with contextlib.suppress(OSError):
            names = {entry.name.partition(".")[0] for entry in os.scandir(self.path)}
            for key in sorted(names):
                with contextlib.suppress(DeploymentError):
                    if (claim := self.claim(key)) is not None:
                        if claim.remove_unused():
                            removed.append(key)
                        claim.release()
            self.path.rmdir()
        return removed


class Claim:
    """Held by one process of the node at a time; ends with `release` or the process."""

    def __init__(self, store: Store, key: str, fd: int) -> None:
        self._store, self._key, self._fd = store, key, fd
        self._copy, self._part, self._gone = (store.path / (key + ending) for ending in ("", ".part", ".gone"))

    def ready(self) -> Held | None:
        """The finished copy; None when there is none or it is damaged.

        While others use it, sizes are looked at only; a copy that was left behind is read through first.
        """
        try:
            fd = os.open(self._copy / manifest.NAME, os.O_RDONLY)
        except FileNotFoundError:
            return None
        with contextlib.suppress(DeploymentError):
            told = manifest.read(self._copy)
            alone = _flock(fd, fcntl.LOCK_EX)
            if told is not None and (manifest.fits if alone else manifest.sizes_fit)(self._copy, told):
                fcntl.flock(fd, fcntl.LOCK_SH)  # not in one move, but who would take it needs our claim
                return Held(self._copy, fd)
        log.warning("%s is damaged or not complete: it is made anew", self._copy)
        os.close(fd)
        return None

    def writer(self, size: int) -> Writer:
        """Begin to make the copy of so many bytes. Raises DeploymentError when there is no room for it."""
        shutil.rmtree(self._part, ignore_errors=True)
        if _free(self._store.path) < size and self._store.sweep():
            log.info("removed unused copies from %s to make room", self._store.path)
        if (free := _free(self._store.path)) < size:
            raise DeploymentError(
                f"model.stage: {self._store.path} has {memory(free)} free, the weights take "
                f"{memory(size)}: name another directory or free some room"
            )
        return Writer(self._part)

    def publish(self, made: Manifest) -> Held:
        """What `writer` wrote becomes the copy."""
        fd = os.open(self._part / manifest.NAME, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        os.write(fd, made.encode())
        fcntl.flock(fd, fcntl.LOCK_SH)
        self._discard()
        os.rename(self._part, self._copy)
        return Held(self._copy, fd)

    def remove_unused(self) -> bool:
        """Whether there was a copy and it is gone."""
        for remains in (self._part, self._gone):
            shutil.rmtree(remains, ignore_errors=True)
        if not self._copy.is_dir():
            return False
        with contextlib.suppress(FileNotFoundError):
            fd = os.open(self._copy / manifest.NAME, os.O_RDONLY)
            try:
                if not _flock(fd, fcntl.LOCK_EX):
                    return False
            finally:
                os.close(fd)
        self._discard()
        return True

    def _discard(self) -> None:
        shutil.rmtree(self._gone, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            os.rename(self._copy, self._gone)
            shutil.rmtree(self._gone, ignore_errors=True)

    def release(self) -> None:
        (self._store.path / f"{self._key}.lock").unlink(missing_ok=True)
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _lock(path: Path) -> int | None:
    """Lock the file at `path` exclusively, or None. A file that its holder removed meanwhile does not count."""
    while True:
        fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        kept = False
        try:
            if not _flock(fd, fcntl.LOCK_EX):
                return None
            with contextlib.suppress(FileNotFoundError):
                kept = os.path.samestat(os.fstat(fd), path.stat())
            if kept:
                return fd
        finally:
            if not kept:
                os.close(fd)


def _flock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _free(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize
