"""How often something may be done about lost tasks: a bucket for all, a budget and a backoff for each. Pure.

Rebuilding loads weights and starts MPI worlds, so a storm of rebuilds after one broken switch would hurt the
replicas that still work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from exahpc.broker.memory import Kind


@dataclass(frozen=True)
class Limits:
    """tries: rebuilds of one task within `window` seconds; backoff: seconds after the first, doubled by each,
    `longest` at most; burst and refill_seconds: of the bucket that all tasks share."""

    tries: int = 5
    window: float = 3600.0
    backoff: float = 10.0
    longest: float = 600.0
    burst: int = 4
    refill_seconds: float = 10.0

    @staticmethod
    def of_fleet(tasks: int) -> Limits:
        """A sixteenth of the fleet at once, and all of it within about three minutes."""
        burst = max(4, tasks // 16)
        return Limits(burst=burst, refill_seconds=min(10.0, 160.0 / max(1, tasks)))


class Allowance:
    """What is left of the limits. history: what was done earlier, from the journal."""

    def __init__(self, limits: Limits, history: Mapping[str, Sequence[tuple[float, Kind]]], now: float) -> None:
        self._limits = limits
        self._done = {key: [at for at, kind in acts if kind != "cancel"] for key, acts in history.items()}
        recent = sum(
            now - at < limits.refill_seconds * limits.burst for acts in self._done.values() for at in acts
        )
        self._tokens = max(0.0, float(limits.burst - recent))
        self._filled = now

    def refusal(self, key: str, now: float) -> str | None:
        """Why nothing may be done about this task now; None when it may."""
        limits = self._limits
        done = self._done.get(key, [])
        while done and now - done[0] >= limits.window:
            del done[0]
        if len(done) >= limits.tries:
            wait = done[0] + limits.window - now
            return (
                f"given up after {len(done)} rebuilds within {limits.window / 3600:g} h; tried again in "
                f"{wait / 60:.0f} min (see its logs for the cause)"
            )
        if done:
            ready = done[-1] + min(limits.longest, limits.backoff * 2 ** (len(done) - 1))
            if now < ready:
                return f"rebuilt {len(done)} times, next try in {ready - now:.0f} s"
        self._fill(now)
        if self._tokens < 1:
            return "waits for its turn: rebuilds are paced"
        return None

    def spend(self, key: str, now: float) -> None:
        """One rebuild of this task begins."""
        self._fill(now)
        self._tokens -= 1
        self._done.setdefault(key, []).append(now)

    def _fill(self, now: float) -> None:
        gained = max(0.0, now - self._filled) / self._limits.refill_seconds
        self._tokens = min(float(self._limits.burst), self._tokens + gained)
        self._filled = now
