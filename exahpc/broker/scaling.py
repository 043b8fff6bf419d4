"""How many tasks of one pool run: what its load wants, between `scaling.least` and all of them. Pure.

Up at once: as many as bring the outstanding tokens to `tokens_per_replica` each, or half as many again when
requests wait too long although nothing was just started. Down late: when the load was below half of the aim for
`idle_seconds`, to what its peak in that time needs, a quarter at most; when nothing was asked at all, to `least`.

Why a constant load makes no change after the first ones: going up ends where the load is at most the aim, going
down begins below half of it, and never goes below the peak's need. Fewer replicas make the load of each heavier,
though, so that a step down may prove wrong: each one that had to be taken back doubles the wait before the next.
"""

from __future__ import annotations

from typing import NamedTuple

from exahpc.deployment.spec import Pool

_MOST_CAUTION = 16.0


class Load(NamedTuple):
    """What is asked of one pool. tokens: outstanding, of requests that run or wait; oldest: seconds that the first
    in line waits; busy: something runs or waits; coming: tasks that are wanted and not ready yet."""

    tokens: float
    oldest: float
    busy: bool
    coming: int


class PoolScaling:
    """wanted: tasks; times in seconds of the fleet's clock."""

    def __init__(
        self, pool: Pool, wanted: int, now: float, *, proven: bool = True, start_seconds: float = 0.0
    ) -> None:
        """proven: all that were wanted have been ready once; before, none is ended. start_seconds: time that tasks
        are given to come before they may be found idle."""
        self._rules, self._least, self._most = pool.scaling, pool.least_tasks, pool.tasks
        self._aim = pool.scaling.tokens_per_replica * min(pool.replicas_per_task, pool.replicas)
        self.wanted = wanted
        self._changed = float("-inf")
        self._proven, self._start = proven, start_seconds
        self._grown = self._asked = now  # asked: when there was something to do
        self._calm_since: float | None = None
        self._peak = 0
        self._shrank = False  # the last change
        self._caution = 1.0

    def decide(self, load: Load, now: float, *, may_grow: bool = True) -> int:
        """The tasks that are wanted from now on. may_grow: nodes may be asked for."""
        self._proven |= not load.coming
        starting = bool(load.coming) and (not self._proven or now < self._grown + self._start)
        if load.busy or starting:
            self._asked = now
        need, late = self._need(load), load.oldest > self._rules.queue_seconds
        if need > self.wanted or late:
            self._calm_since = None
            if late and not starting:
                need = max(need, self.wanted + max(1, self.wanted // 2))
            if may_grow:
                self._grow(min(need, self._most), now)
        elif now >= self._asked + self._rules.idle_seconds:
            self._shrink(self._least, now)
        elif load.tokens < self._aim * self.wanted / 2 and not starting:
            self._calm(need, now)
        else:
            self._calm_since = None
        return self.wanted

    def _need(self, load: Load) -> int:
        """Tasks that bring the load to the aim; one at least for whatever there is to do."""
        need = max(int(-(-load.tokens // self._aim)), int(load.busy))
        return min(self._most, max(self._least, need))

    def _grow(self, target: int, now: float) -> None:
        """The first request of a pool that sleeps does not wait for a pause to end."""
        if target > self.wanted and (self.wanted == 0 or self._may_change(now)):
            if self._shrank and now < self._changed + 2 * self._wait:
                self._caution = min(_MOST_CAUTION, 2 * self._caution)
            self.wanted, self._changed, self._grown, self._shrank = target, now, now, False

    def _calm(self, need: int, now: float) -> None:
        if self._calm_since is None:
            self._calm_since, self._peak = now, 0
        self._peak = max(self._peak, need)
        if now >= self._calm_since + self._wait:
            self._shrink(max(self._peak, self.wanted - max(1, self.wanted // 4)), now)

    def _shrink(self, target: int, now: float) -> None:
        if self._may_change(now):
            if target < self.wanted:
                if self._shrank:  # the one before was right
                    self._caution = max(1.0, self._caution / 2)
                self.wanted, self._changed, self._shrank = target, now, True
            self._calm_since = None

    @property
    def _wait(self) -> float:
        """Seconds of light load before a step down."""
        return self._rules.idle_seconds * self._caution

    def _may_change(self, now: float) -> bool:
        return now >= self._changed + self._rules.pause_seconds
