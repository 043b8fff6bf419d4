"""How often something may be done about lost tasks: a bucket for all, a budget and a backoff for each. Pure.

Rebuilding loads weights and starts MPI worlds, so a storm of rebuilds after one broken switch would hurt the
replicas that still work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from exahpc.broker.bucket import Bucket, pace
from exahpc.broker.memory import Kind

LOADING = 8  # one task of a pool in so many may load its weights for a rebuild
LEAST_LOADING = 4


def loads_at_once(tasks: int) -> int:
    """Tasks of a pool of this size that may load for a rebuild at the same time."""
    return max(LEAST_LOADING, tasks // LOADING)


@dataclass(frozen=True)
class Limits:
    """tries: rebuilds of one task within `window` seconds; backoff: seconds after the first, doubled by each,
    `longest` at most, each of them up to a half more by chance, so that what broke together is not tried together;
    burst and refill_seconds: of the bucket that all tasks share."""

    tries: int = 5
    window: float = 3600.0
    backoff: float = 10.0
    longest: float = 600.0
    burst: int = 4
    refill_seconds: float = 10.0

    @staticmethod
    def of_fleet(tasks: int) -> Limits:
        """A sixteenth of the fleet at once, and all of it within about three minutes."""
        burst, refill_seconds = pace(tasks)
        return Limits(burst=burst, refill_seconds=refill_seconds)


@dataclass(frozen=True)
class Refusal:
    """Why nothing may be done about a task now. spent: its own budget is."""

    why: str
    spent: bool = False


@dataclass
class _Done:
    """Rebuilds of one task within the window; until: the pause after the last one ends."""

    times: list[float]
    until: float = float("-inf")


class Allowance:
    """What is left of the limits. history: what was done earlier, from the journal; dice: a random number in
    [0, 1)."""

    def __init__(
        self,
        limits: Limits,
        history: Mapping[str, Sequence[tuple[float, Kind]]],
        now: float,
        dice: Callable[[], float],
    ) -> None:
        self._limits, self._dice = limits, dice
        self._done: dict[str, _Done] = {}
        recent = 0
        for key, acts in history.items():
            for at, kind in acts:
                if kind != "cancel":
                    self._note(key, at)
                    recent += now - at < limits.refill_seconds * limits.burst
        self._bucket = Bucket(limits.burst, limits.refill_seconds, now, recent)

    def refusal(self, key: str, now: float) -> Refusal | None:
        """None when something may be done about this task now."""
        limits = self._limits
        done = self._done.get(key)
        times = done.times if done else []
        while times and now - times[0] >= limits.window:
            del times[0]
        if len(times) >= limits.tries:
            wait = times[0] + limits.window - now
            return Refusal(
                f"given up after {len(times)} rebuilds within {limits.window / 3600:g} h; tried again in "
                f"{wait / 60:.0f} min (see its logs for the cause)",
                spent=True,
            )
        if done and times and now < done.until:
            return Refusal(f"rebuilt {len(times)} times, next try in {done.until - now:.0f} s")
        return self.turn(now)

    def turn(self, now: float) -> Refusal | None:
        """The same, by the bucket alone."""
        return None if self._bucket.has(now) else Refusal("waits for its turn: rebuilds are paced")

    def spend(self, key: str, now: float, *, counts: bool = True) -> None:
        """A rebuild of this task begins. counts: as one of its tries."""
        self._bucket.spend(now)
        if counts:
            self._note(key, now)

    def untried(self, key: str) -> None:
        """The last rebuild of this task did not begin after all: it does not count, but for the pause after it."""
        if (done := self._done.get(key)) is not None and done.times:
            done.times.pop()

    def _note(self, key: str, at: float) -> None:
        done = self._done.setdefault(key, _Done([]))
        done.times.append(at)
        pause = min(self._limits.longest, self._limits.backoff * 2 ** (len(done.times) - 1))
        done.until = at + pause * (1 + self._dice() / 2)
