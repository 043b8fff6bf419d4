"""How long it takes until a task submitted now serves, learned pool by pool from the last ones. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

from exahpc.broker.memory import Learns

KEPT = 32
QUANTILE = 0.9


def high(samples: Iterable[float]) -> float | None:
    """The value that a share QUANTILE of the samples does not exceed; of few ones the largest. None of none."""
    known = sorted(samples)
    return known[math.ceil(QUANTILE * len(known)) - 1] if known else None


class Learned:
    """Seconds. wait: from a submission to the agent's hello; load: from there until all its replicas are ready."""

    def __init__(self, before: Iterable[tuple[str, Learns, float]] = ()) -> None:
        """before: (pool, what, seconds) of earlier brokers, oldest first."""
        self._samples: dict[tuple[str, Learns], deque[float]] = {}
        for pool, what, seconds in before:
            self.add(pool, what, seconds)

    def add(self, pool: str, what: Learns, seconds: float) -> None:
        self._samples.setdefault((pool, what), deque(maxlen=KEPT)).append(seconds)

    def wait(self, pool: str) -> float | None:
        return high(self._samples.get((pool, "wait"), ()))

    def load(self, pool: str) -> float | None:
        return high(self._samples.get((pool, "load"), ()))
