"""Waiting for MPI without burning a core: MPI's own blocking calls spin and starve ranks that share it."""

from __future__ import annotations

import time

from mpi4py import MPI

FIRST = 30e-6
LONGEST = 1e-3
IDLE_AFTER = 0.25
IDLE_PER_RANK = 2.5e-3


def wait(request: MPI.Request, idle: float = LONGEST) -> None:
    """Return when `request` is complete. Naps grow to 1 ms; after a quarter of a second to `idle` seconds.

    A waking rank costs some 70 microseconds of processor time, so naps of 2.5 ms times the number of ranks keep a
    whole idle replica near 2 % of a core. They are also the most that a first token waits for a sleeping rank.
    """
    nap = slept = 0.0
    while not request.Test():
        nap = min(max(nap * 1.5, FIRST), LONGEST if slept < IDLE_AFTER else idle)
        time.sleep(nap)
        slept += nap
