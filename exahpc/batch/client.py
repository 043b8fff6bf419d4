"""One `exahpc batch run` at a time for one output: claims by number, without locks (parallel file systems).

The newest claim owns the folder. Its owner touches it while it lives; a new client takes over only when the newest
claim is released, its process is gone (same host), or it was not touched for a while. An owner that slept so long
notices that it was replaced before it writes again, and cannot overwrite anything (see `segments.publish`).
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from exahpc.batch.plan import Parts
from exahpc.errors import BatchBusy
from exahpc.wire.folder import write_atomic

STALE_SECONDS = 60.0
_UNHEARD_SECONDS = STALE_SECONDS / 2
"""How long a file system may fail the owner, far from where others may take over."""


class Claim(msgspec.Struct, frozen=True):
    """Who owns a folder. released: ended in order."""

    host: str
    pid: int
    released: bool = False


def _newest(folder: Path) -> int:
    return max((int(name) for name in os.listdir(folder) if name.isdigit()), default=0)


def process_lives(pid: int) -> bool:
    """Whether this host runs a process of that number: the one that is meant, or a later one."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


class Owner:
    """Holds the folder while it lives: call `beat` at least every few seconds, `release` at the end."""

    def __init__(self, parts: Parts, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises BatchBusy while another client works on this output."""
        self._folder, self._clock = parts.clients, clock
        newest = _newest(self._folder)
        if newest and not self._free(newest):
            claim = self._read(newest)
            who = f"process {claim.pid} on {claim.host}" if claim else "it has just begun"
            raise BatchBusy(
                f"another `exahpc batch run` works on {parts.path} ({who}): wait for it, or end it "
                f"and try again after {STALE_SECONDS:g} s"
            )
        self.number = newest + 1
        try:
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            raise BatchBusy(f"another `exahpc batch run` has just begun on {parts.path}") from None
        try:
            self._write(Claim(socket.gethostname(), os.getpid()))
        except OSError:
            self._path.unlink(missing_ok=True)  # an empty claim would hold up the next client for a minute
            raise
        self._released, self._beaten = False, clock()

    @property
    def _path(self) -> Path:
        return self._folder / str(self.number)

    def _write(self, claim: Claim) -> None:
        write_atomic(self._path, msgspec.json.encode(claim))

    def _read(self, number: int) -> Claim | None:
        try:
            return msgspec.json.decode((self._folder / str(number)).read_bytes(), type=Claim)
        except msgspec.MsgspecError:
            return None  # claimed a moment ago

    def _free(self, number: int) -> bool:
        claim = self._read(number)
        if claim is not None and claim.released:
            return True
        if claim is not None and claim.host == socket.gethostname() and not process_lives(claim.pid):
            return True  # no need to wait; a living process may be another one with the same id
        return self._file_system_now() - (self._folder / str(number)).stat().st_mtime > STALE_SECONDS

    def _file_system_now(self) -> float:
        """The clock that stamps files; the one of this node may differ."""
        probe = self._folder / f".probe.{socket.gethostname()}.{os.getpid()}"
        probe.write_bytes(b"")
        now = probe.stat().st_mtime
        probe.unlink(missing_ok=True)
        return now

    def beat(self) -> None:
        """Say that this client lives. Raises BatchBusy when it was replaced, OSError when it could not say so for
        long; does nothing after `release`."""
        if self._released:
            return
        now = self._clock()
        try:
            if _newest(self._folder) != self.number:
                raise BatchBusy(f"another `exahpc batch run` has taken over {self._folder.parent}: this one stops")
            os.utime(self._path)
        except FileNotFoundError:
            raise
        except OSError:
            if now - self._beaten >= _UNHEARD_SECONDS:
                raise
        else:
            self._beaten = now

    def release(self) -> None:
        """From now on the folder may be anybody's, or go."""
        if self._released:
            return
        self._released = True
        with contextlib.suppress(OSError):  # it was removed, or the disk is full: then silence tells
            if _newest(self._folder) == self.number:
                self._write(Claim(socket.gethostname(), os.getpid(), released=True))
