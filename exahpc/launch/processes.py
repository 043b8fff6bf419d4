"""Processes of this machine that outlive the command that started them: known by pid *and* start time."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec


class Started(msgspec.Struct, frozen=True):
    """One process of machine `host`.

    born: its start time in clock ticks since boot, so that a reused pid is never mistaken for it.
    """

    pid: int
    born: int
    host: str = ""


def start(argv: Sequence[str], log: Path) -> Started:
    """Start a program in a session of its own; its output is appended to `log`."""
    with open(log, "ab", opener=_private) as file:
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True, close_fds=True
        )
    born = _born(child.pid)
    return Started(child.pid, born if born is not None else -1, socket.gethostname())


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat after the program's name (which may hold spaces), or [] when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _born(pid: int) -> int | None:
    fields = _stat(pid)
    return int(fields[19]) if fields and fields[0] not in "ZX" else None


def alive(process: Started) -> bool:
    """Whether it still runs; a zombie does not."""
    return _born(process.pid) == process.born


def naming(folder: Path) -> list[Started]:
    """This user's processes that were started with `--folder FOLDER`: whatever a deployment left behind."""
    wanted = str(folder).encode()
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if entry.stat().st_uid != os.getuid():
                continue
            words = Path(entry.path, "cmdline").read_bytes().split(b"\0")
        except OSError:  # it ended while we looked
            continue
        if (b"--folder" in words and wanted in words) or b"--folder=" + wanted in words:
            born = _born(int(entry.name))
            if born is not None:
                found.append(Started(int(entry.name), born))
    return found


def send(processes: Iterable[Started], number: signal.Signals) -> None:
    for process in processes:
        if alive(process):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)


def gone(processes: Sequence[Started], seconds: float) -> bool:
    """Wait until all have ended; False when some still run after `seconds`."""
    end = time.monotonic() + seconds
    while any(alive(p) for p in processes):
        if time.monotonic() >= end:
            return False
        time.sleep(0.05)
    return True
