"""A token bucket: so many at once, and one more every so many seconds. Pure."""

from __future__ import annotations


class Bucket:
    """burst: tokens when full, at least 1; refill_seconds: for one token."""

    def __init__(self, burst: int, refill_seconds: float, now: float) -> None:
        self._burst, self._refill = float(burst), refill_seconds
        self._tokens, self._filled = self._burst, now

    @staticmethod
    def of_fleet(size: int, now: float) -> Bucket:
        """A sixteenth of the fleet at once, and all of it within about three minutes."""
        return Bucket(max(4, size // 16), min(10.0, 160.0 / max(1, size)), now)

    def take(self, now: float, tokens: int = 1) -> bool:
        """Take tokens if they are there. More than the bucket holds are granted when it is full."""
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._filled) / self._refill)
        self._filled = now
        if self._tokens < min(float(tokens), self._burst):
            return False
        self._tokens = max(0.0, self._tokens - tokens)
        return True
