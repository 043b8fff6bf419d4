"""Waiting for MPI without burning a core: MPI's own blocking calls spin and starve ranks that share it."""

from __future__ import annotations

import time

from mpi4py import MPI

FIRST = 30e-6
LONGEST = 1e-3
IDLE_AFTER = 0.25
IDLE_PER_RANK = 2.5e-3
_GROWTH = 1.25


class Naps:
    """Sleep again and again until something happens. idle: longest nap after a quarter of a second, in seconds.

    Naps grow to 1 ms, each at most a fifth of what was slept so far: nobody oversleeps by more than that.

    A waking rank costs some 70 microseconds of processor time, so naps of 2.5 ms times the number of ranks keep a
    whole idle replica near 2 % of a core. They are also the most that a first token waits for a sleeping rank.
    """

    __slots__ = ("_idle", "_nap", "_slept")

    def __init__(self, idle: float = LONGEST) -> None:
        self._idle = idle
        self._nap = self._slept = 0.0

    def sleep(self) -> None:
        longest = LONGEST if self._slept < IDLE_AFTER else self._idle
        self._nap = min(max(self._nap * _GROWTH, FIRST), longest)
        time.sleep(self._nap)
        self._slept += self._nap


def wait(request: MPI.Request, idle: float = LONGEST) -> None:
    """Return when `request` is complete. idle: see `Naps`."""
    naps = Naps(idle)
    while not request.Test():
        naps.sleep()
