"""Waiting for MPI without burning a core: MPI's own blocking calls spin and starve ranks that share it."""

from __future__ import annotations

import time

from mpi4py import MPI

FIRST = 30e-6
LONGEST = 1e-3
IDLE_AFTER = 0.25
IDLE = 10e-3


def wait(request: MPI.Request) -> None:
    """Return when `request` is complete. Naps grow to 1 ms; after a quarter of a second, when the replica is
    evidently idle, to 10 ms, which is also the most that a first token waits for a sleeping rank."""
    nap = slept = 0.0
    while not request.Test():
        nap = min(max(nap * 1.5, FIRST), LONGEST if slept < IDLE_AFTER else IDLE)
        time.sleep(nap)
        slept += nap
