"""How early the successors of a pool's tasks are submitted. Pure.

    lead = warning + wait + load + margin        wait, load: see `learned`; margin: a share of the time limit

so that a successor's replicas are ready when Slurm's warning comes; and earlier where many tasks end together:
then one after another, so that about a twentieth of the pool is doubled at a time, for that up to half of the time
limit ahead. Never more than `walltime.most_lead_seconds` ahead.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from exahpc.broker.bucket import Bucket
from exahpc.broker.learned import Learned
from exahpc.deployment.rules import merged
from exahpc.deployment.spec import Deployment, Pool
from exahpc.slurm import timelimit
from exahpc.slurm.submission import WARN_SECONDS

WARNING = WARN_SECONDS + 30.0  # Slurm's signals are up to half a minute early
DOUBLED = 20  # one task in so many has its successor beside it, when all end together
ALL_SECONDS = 480.0  # a whole pool's successors are submitted within this time at the fastest
PRIOR_WAIT, PRIOR_LOAD = 300.0, 120.0  # before anything was measured
LEAST_MARGIN, MOST_MARGIN, MARGIN = 15.0, 300.0, 0.03
MOST_LEAD = 0.75  # of the time limit: a short one must not mean that a task has a successor all the time


class End(NamedTuple):
    """A task without a successor. time: when Slurm ends it; began: when its agent was first seen, 0 when not
    known; after: no successor before that time."""

    time: float
    key: str
    began: float
    after: float


def in_advance(deployment: Deployment, pool: Pool, learned: Learned) -> list[int] | None:
    """For successors that `up` submits: minutes from each task's start to its successor's, by the same rule, as if
    all tasks started together. The last one's suits further successors: what was spread stays so. None where the
    deployment file tells no time limit.
    """
    limit = timelimit.seconds(merged(deployment.slurm, pool.slurm).time or "")
    if limit is None:
        return None
    wait, load = _expected(learned, pool.name)
    lead, gap = _lead(limit, wait, load), (load + deployment.walltime.drain_seconds) / _doubled(pool)
    most = _most(limit, lead, deployment.walltime.most_lead_seconds)
    ahead = [min(most, lead + gap * behind) for behind in reversed(range(pool.tasks))]
    return [max(1, int((limit - seconds) // 60)) for seconds in ahead]  # Slurm knows whole minutes, and no zero


def _expected(learned: Learned, pool: str) -> tuple[float, float]:
    wait, load = learned.wait(pool), learned.load(pool)
    return PRIOR_WAIT if wait is None else wait, PRIOR_LOAD if load is None else load


def _lead(limit: float, wait: float, load: float) -> float:
    margin = min(MOST_MARGIN, max(LEAST_MARGIN, MARGIN * limit))
    return min(MOST_LEAD * limit, WARNING + wait + load + margin)


def _most(limit: float, lead: float, told: float) -> float:
    """told: `walltime.most_lead_seconds`."""
    return min(told, max(limit / 2, lead))


def _doubled(pool: Pool) -> int:
    return max(1, pool.tasks // DOUBLED)


class Leads:
    """Of one pool. Times in seconds of the fleet's clock, which is Unix time."""

    def __init__(self, deployment: Deployment, pool: Pool, learned: Learned, now: float) -> None:
        self._pool, self._learned = pool.name, learned
        self._most, self._drain = deployment.walltime.most_lead_seconds, deployment.walltime.drain_seconds
        self._told = timelimit.seconds(merged(deployment.slurm, pool.slurm).time or "")
        self._doubled = _doubled(pool)
        self._bucket = Bucket(self._doubled, min(10.0, ALL_SECONDS / pool.tasks), now)

    def due(self, ends: Iterable[End], waiting: float, now: float) -> list[End]:
        """Those whose successors are submitted now, the first to end first. Planned backwards from the last end.

        waiting: how long a successor of this pool waits in the queue already.
        """
        wait, load = _expected(self._learned, self._pool)
        wait = max(wait, waiting)
        gap = (load + self._drain) / self._doubled
        due: list[End] = []
        latest = float("inf")
        for end in sorted(ends, reverse=True):
            limit = self._told or (end.time - end.began if end.began else float("inf"))
            lead = _lead(limit, wait, load)
            latest = min(latest - gap, end.time - lead)
            if now >= max(latest, end.time - _most(limit, lead, self._most), end.after):
                due.append(end)
        due.reverse()
        return due[: next((count for count in range(len(due)) if not self._bucket.take(now)), len(due))]
