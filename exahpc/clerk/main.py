"""The clerk's loop: looks for submitted batches, keeps a worker for each that runs, ends in order.

A worker is a process of its own: what one batch does to its memory is no other's business. It ends when the clerk
does, however that ends: it reads a pipe that only the clerk holds open.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import threading
import time
from collections.abc import Callable

import msgspec

from exahpc.clerk.queue import AGAIN, Queue
from exahpc.errors import BatchError
from exahpc.wire.shelf import STALE_SECONDS, sweep
from exahpc.wire.submissions import LineError, State
from exahpc.wire.tray import Tray

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
_LOOK_ANYWAY = 30.0  # a folder's time may be that of its file system's cache
_WISHES_EVERY = 2.0
_GRACE = 20.0
_CRASHED = "its worker crashed several times in a row: the clerk's log (`exahpc logs`) tells why"

Start = Callable[[str], "subprocess.Popen[bytes]"]


class Clerk:
    """tray: of the deployment; most: batches that run at once; start: a worker for a batch."""

    def __init__(self, tray: Tray, most: int, start: Start) -> None:
        self._tray, self._start = tray, start
        self._queue = Queue(most)
        self._seen: set[str] = set()
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._changed, self._look_at, self._wishes_at = -1, 0.0, 0.0

    def turn(self, now: float) -> None:
        """Look once. now: seconds of a monotonic clock."""
        for batch, worker in list(self._workers.items()):
            code = worker.poll()
            if code is not None:
                self._ended(batch, worker, code, now)
        changed = self._tray.changed()
        if changed != self._changed or now >= self._look_at:
            self._changed, self._look_at = changed, now + _LOOK_ANYWAY
            self._find()
        if now >= self._wishes_at:
            self._wishes_at = now + _WISHES_EVERY
            self._grant()
        for batch in self._queue.start(now):
            try:
                self._workers[batch] = self._start(batch)
            except OSError as error:  # this machine has no room for a process
                log.error("no worker for %s: %s", batch, error)
                self._queue.ended(batch, AGAIN, now)
            else:
                log.info("%s runs", batch)

    def _find(self) -> None:
        for batch in self._tray.ids():
            if batch in self._seen:
                continue
            self._seen.add(batch)
            try:
                submission, state = self._tray.submission(batch), self._tray.state(batch)
            except BatchError as error:
                log.error("%s", error)
                continue
            if submission is None:
                self._seen.discard(batch)  # it is being written
            elif state.ended:
                self._tray.clear(batch)  # the worker that ended it may have been killed before it did
            else:
                self._queue.add(batch, submission.owner)

    def _grant(self) -> None:
        """End what waits and was not begun, where that is wished or its time is over: a worker may be far off."""
        now = int(time.time())
        for batch in self._queue.waiting:
            submission, state = self._tray.submission(batch), self._tray.state(batch)
            if submission is None or state.phase != "validating":
                continue
            if self._tray.cancelled_at(batch) is not None:
                state = state.to("cancelled", now)
            elif submission.expires is not None and now >= submission.expires:
                state = state.to("expired", now)
            else:
                continue
            self._tray.save(batch, state)
            self._tray.clear(batch)
            self._queue.remove(batch)

    def _ended(self, batch: str, worker: subprocess.Popen[bytes], code: int, now: float) -> None:
        del self._workers[batch]
        _close(worker)
        log.info("the worker of %s ended with code %d", batch, code)
        if self._queue.ended(batch, code, now):
            log.error("%s: %s", batch, _CRASHED)
            self._seen.discard(batch)  # should nobody be able to write that down now, it is found again
            self._tray.save(batch, _crashed(self._tray.state(batch), int(time.time())))
            self._seen.add(batch)

    def end(self) -> None:
        """Let the workers end in order."""
        for worker in self._workers.values():
            worker.terminate()
        until = time.monotonic() + _GRACE
        for worker in self._workers.values():
            try:
                worker.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
            _close(worker)
        self._workers.clear()


def _crashed(state: State, now: int) -> State:
    if state.ended:
        return state
    errors = (LineError(_CRASHED, code="batch_failed"),)
    return msgspec.structs.replace(state.to("failed", now), errors=errors, note=_CRASHED)


def _close(worker: subprocess.Popen[bytes]) -> None:
    if worker.stdin is not None:
        worker.stdin.close()


def serve(clerk: Clerk, tray: Tray) -> None:
    """Until SIGTERM or SIGINT."""
    told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: told.set())
    sweep_at = time.monotonic()
    while not told.is_set():
        now = time.monotonic()
        try:
            if now >= sweep_at:
                sweep_at = now + STALE_SECONDS
                sweep(tray.path.parent, time.time())
            clerk.turn(now)
        except (OSError, BatchError) as error:
            log.error("the deployment's folder cannot be used: %s", error)
        told.wait(LOOK_SECONDS)
    clerk.end()
