"""A token bucket: so many at once, and one more every so many seconds. Pure."""

from __future__ import annotations


def pace(size: int) -> tuple[int, float]:
    """(burst, seconds of a refill) for a fleet: a sixteenth of it at once, and all of it within about three
    minutes."""
    return max(4, size // 16), min(10.0, 160.0 / max(1, size))


class Bucket:
    """burst: tokens when full, at least 1; refill_seconds: for one token; spent: lately."""

    def __init__(self, burst: int, refill_seconds: float, now: float, spent: int = 0) -> None:
        self._burst, self._refill = float(burst), refill_seconds
        self._tokens, self._filled = max(0.0, self._burst - spent), now

    @staticmethod
    def of_fleet(size: int, now: float) -> Bucket:
        """At `pace`."""
        return Bucket(*pace(size), now)

    def has(self, now: float, tokens: int = 1) -> bool:
        """Whether they are there. More than the bucket holds are there when it is full."""
        self._fill(now)
        return self._tokens >= min(float(tokens), self._burst)

    def spend(self, now: float) -> None:
        """Take one token, also one that is still to come."""
        self._fill(now)
        self._tokens -= 1

    def take(self, now: float, tokens: int = 1) -> bool:
        """Take tokens if they are there."""
        if not self.has(now, tokens):
            return False
        self._tokens = max(0.0, self._tokens - tokens)
        return True

    def _fill(self, now: float) -> None:
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._filled) / self._refill)
        self._filled = now
