"""A measurement from beginning to end: several processes ask, one value comes out."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NoReturn

import msgspec

from exahpc.errors import ExahpcError
from exahpc.lab.bench.figures import Result, result
from exahpc.lab.bench.seen import Job, Seen
from exahpc.lab.bench.wish import Load, Wish
from exahpc.lab.emulated.label import LABEL

_OPEN = 128
"""Streams, or requests a second, that one process is given."""
_SOON = 0.1
"""Seconds from the word to begin until the first request."""


def processes_for(load: Load) -> int:
    """As many as the load may need, with a core left for others. Figures tell whether they were enough."""
    wanted = -(-max(load.concurrency, round(load.rate)) // _OPEN)
    return max(1, min(wanted, len(os.sched_getaffinity(0)) - 1))


def measure(wish: Wish, key: str, processes: int = 0, told: Callable[[str], None] = lambda line: None) -> Result:
    """Ask, wait for the answers, and count. processes: 0: as many as the load may need; told: what happens now.

    Raises ExahpcError when a process ends early, or nothing was answered.
    """
    count = processes or processes_for(wish.load)
    if not wish.load.open:
        count = min(count, wish.load.concurrency)
    _raise_limit()
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(_Child(Job(wish, key, number, count))) for number in range(count)]
        for child in children:
            child.ready()
        start = time.monotonic() + _SOON
        told(
            f"{wish.load}: {wish.ramp:g} s of ramp-up, then {wish.seconds:g} s that count, then the answers' ends"
        )
        for child in children:
            child.begin(start)
        seen = [child.seen() for child in children]
    found = result(
        wish,
        seen,
        start + wish.ramp,
        datetime.now(UTC).isoformat(timespec="seconds"),
        emulated=wish.target.model.startswith(LABEL),
    )
    if not found.ok:
        why = next(iter(found.errors), "no answer was complete before the drain was over")
        raise ExahpcError(f"{wish.target.url}: none of {found.requests} requests was answered: {why}")
    return found


class _Child:
    """One worker, ended in any case."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __enter__(self) -> _Child:
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "exahpc.lab.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._say(msgspec.json.encode(self._job))
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.communicate()

    def ready(self) -> None:
        assert self._child.stderr is not None
        line = self._child.stderr.readline()
        if line != b"ready\n":
            self._fail(line)

    def begin(self, start: float) -> None:
        self._say(repr(start).encode())

    def seen(self) -> Seen:
        out, errors = self._child.communicate()
        if self._child.returncode:
            self._fail(errors)
        try:
            return msgspec.msgpack.decode(out, type=Seen)
        except msgspec.DecodeError as error:
            self._fail(f"{len(out)} bytes came: {error}; {errors.decode(errors='replace')}".encode())

    def _say(self, line: bytes) -> None:
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died: `ready` or `seen` tells why
            self._child.stdin.write(line + b"\n")
            self._child.stdin.flush()

    def _fail(self, said: bytes) -> NoReturn:
        more, code = self._child.communicate()[1] or b"", self._child.returncode
        tail = (said + more).decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {code}"]
        raise ExahpcError(f"a process of the load client ended early: {tail[0]}")


def _raise_limit() -> None:
    """Open files: one for each stream."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
