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


class Leads:
    """Of one pool. Times in seconds of the fleet's clock, which is Unix time."""

    def __init__(self, deployment: Deployment, pool: Pool, learned: Learned, now: float) -> None:
        self._pool, self._learned = pool.name, learned
        self._most, self._drain = deployment.walltime.most_lead_seconds, deployment.walltime.drain_seconds
        self._told = timelimit.seconds(merged(deployment.slurm, pool.slurm).time or "")
        self._doubled = max(1, pool.tasks // DOUBLED)
        self._bucket = Bucket(self._doubled, min(10.0, ALL_SECONDS / pool.tasks), now)

    def due(self, ends: Iterable[End], waiting: float, now: float) -> list[End]:
        """Those whose successors are submitted now, the first to end first. Planned backwards from the last end.

        waiting: how long a successor of this pool waits in the queue already.
        """
        known_wait, known_load = self._learned.wait(self._pool), self._learned.load(self._pool)
        wait = max(PRIOR_WAIT if known_wait is None else known_wait, waiting)
        load = PRIOR_LOAD if known_load is None else known_load
        gap = (load + self._drain) / self._doubled
        due: list[End] = []
        latest = float("inf")
        for end in sorted(ends, reverse=True):
            limit = self._told or (end.time - end.began if end.began else float("inf"))
            margin = min(MOST_MARGIN, max(LEAST_MARGIN, MARGIN * limit))
            lead = min(MOST_LEAD * limit, WARNING + wait + load + margin)
            latest = min(latest - gap, end.time - lead)
            if now >= max(latest, end.time - min(self._most, max(limit / 2, lead)), end.after):
                due.append(end)
        due.reverse()
        return due[: next((count for count in range(len(due)) if not self._bucket.take(now)), len(due))]
