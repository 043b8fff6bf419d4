"""How fast the line drains, and what refused clients are told from it. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable

LEAST, MOST = 1, 60
"""Bounds of Retry-After in seconds."""
_WINDOW = 10.0  # seconds over which the rate is averaged
_PARTS = 1024  # of the random spread


class Pace:
    """draw(n): random whole number < n."""

    def __init__(self, draw: Callable[[int], int]) -> None:
        self._draw = draw
        self._gone = self._spent = 0.0  # requests and seconds, the older ones counting less
        self._since = 0.0
        self._waited = False
        self.left = 0
        """Requests that went to a replica since the last tick."""
        self.told = 0
        """The last Retry-After, in seconds."""

    def tick(self, now: float, waiting: int) -> None:
        """Take in `left`: an exponentially weighted average. waiting: requests in line now.

        Only time with a line counts: without one, as many requests go as come.
        """
        seconds = now - self._since
        if seconds <= 0:
            return
        if waiting or self._waited:
            kept = math.exp(-seconds / _WINDOW)
            self._gone = self._gone * kept + self.left
            self._spent = self._spent * kept + seconds
        self._waited = waiting > 0
        self.left, self._since = 0, now

    def retry_after(self, ahead: int) -> int:
        """Seconds until the line of `ahead` requests has gone at the present pace: for those who are turned away.

        From three quarters to five quarters of that, at random, so that they do not come back together.
        """
        most = MOST / 1.25
        wait = min(most, ahead * self._spent / self._gone) if self._gone > 0 else most
        self.told = max(LEAST, min(MOST, math.ceil(wait * (0.75 + 0.5 * self._draw(_PARTS) / _PARTS))))
        return self.told
