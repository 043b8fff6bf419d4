"""How idle each rank is while the replica has work. Pure.

Every rank counts its *busy* seconds: those it spends on plans, without those it waits for the hidden states of
them. The head counts the *active* seconds in which there was work at all. What a rank was not busy of these it was
idle: it waited for its neighbours, or for the head to decide. Waiting inside a tensor-parallel sum counts as busy.
"""

from __future__ import annotations

from collections import deque

_REPORTS, _APART = 6, 0.5
"""Shares are over the last reports of a rank, so many and at least so many seconds apart: each may be off by the
length of an iteration."""


class IdleShares:
    """On the head rank: shares of all ranks, from what they report now and then."""

    def __init__(self, ranks: int) -> None:
        self._told: list[deque[tuple[float, float]]] = [deque([(0.0, 0.0)], _REPORTS) for _ in range(ranks)]

    def report(self, rank: int, active: float, busy: float) -> None:
        """active, busy: seconds since the start, both at the moment of the report."""
        told = self._told[rank]
        if active >= told[-1][0] + _APART:
            told.append((active, busy))

    def shares(self) -> list[float]:
        """Idle share of each rank (0..1), the last known while there is no work; 0 for a rank that never told."""
        return [self._share(told) for told in self._told]

    @staticmethod
    def _share(told: deque[tuple[float, float]]) -> float:
        active, busy = told[-1][0] - told[0][0], told[-1][1] - told[0][1]
        return min(1.0, max(0.0, 1.0 - busy / active)) if active > 0 else 0.0
