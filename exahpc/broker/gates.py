"""What two versions of the deployment have done since a rollout began, and whether the new one may go on. Pure.

Three gates, each against the old version in the same time: failed requests, senseless answers, latency. A fourth
needs no comparison: replicas of the new version that die.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import sqrt
from statistics import median
from typing import Literal

from exahpc.broker.moving import Task
from exahpc.deployment.policy import Rollout
from exahpc.wire.messages import ReplicaState, Service

LEAST_WINDOWS = 16  # requests in the windows of all replicas of a version and pool, before these are compared
CHANCE = 2.0  # standard deviations by which a share may be off by mere chance
SLOW_SECONDS = 10.0  # so long the new version must be too slow: a burst is no verdict
NOISE = {"ttft": 0.05, "tbt": 0.005}
"""Seconds that nobody would notice, whatever the ratio. ttft: to the first token; tbt: between tokens."""


@dataclass
class Counts:
    """Requests that ended well or badly, senseless ones of the former, and deaths of replicas."""

    served: int = 0
    failed: int = 0
    odd: int = 0
    deaths: int = 0

    @property
    def ended(self) -> int:
        return self.served + self.failed


@dataclass(frozen=True)
class Verdict:
    word: Literal["good", "wait", "bad"]
    why: str


@dataclass
class Figures:
    """Counts and latencies of an old and a new version, from the replicas' own running totals."""

    old: str
    new: str
    counts: dict[str, Counts] = field(default_factory=dict)
    latency: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)
    """(version, pool) -> the last known medians, "ttft" and "tbt" in seconds. Pools have shapes and speeds of
    their own, so only the same pool is compared."""
    _known: dict[tuple[str, int], tuple[int, Service, int]] = field(default_factory=dict)
    _slow_since: float | None = None

    def of(self, version: str) -> Counts:
        return self.counts.setdefault(version, Counts())

    def absorb(self, tasks: Iterable[Task]) -> None:
        """Take over what the replicas tell."""
        windows: dict[tuple[str, str], list[Service]] = {}
        for task in tasks:
            if not task.alive or task.version not in (self.old, self.new):
                continue
            for replica in task.replicas:
                self._count(task, replica)
                if replica.phase == "ready" and replica.service.samples:
                    windows.setdefault((task.version, task.pool), []).append(replica.service)
        for key, services in windows.items():
            if sum(service.samples for service in services) >= LEAST_WINDOWS:
                self.latency[key] = {name: _median(services, name) for name in NOISE}

    def _count(self, task: Task, replica: ReplicaState) -> None:
        """Totals begin anew with each incarnation, and with each agent process: then all of them is new. What the
        old version had done before the rollout is none of its business."""
        where, service = (task.key, replica.slot), replica.service
        incarnation, last, restarts = self._known.get(
            where,
            (0, Service(), 0) if task.version == self.new else (replica.incarnation, service, replica.restarts),
        )
        self._known[where] = replica.incarnation, service, replica.restarts
        again = (
            incarnation == replica.incarnation and service.served >= last.served and service.failed >= last.failed
        )
        base = last if again else Service()
        counts = self.of(task.version)
        counts.served += service.served - base.served
        counts.failed += service.failed - base.failed
        counts.odd += max(0, service.odd - base.odd)
        counts.deaths += replica.restarts - (restarts if replica.restarts >= restarts else 0)

    def judge(self, gates: Rollout, replicas: int, *, alone: bool, now: float) -> Verdict:
        """replicas: of the new version; alone: no task is left to the old version, so it ends no more requests.

        A share may exceed the old one's by `most_errors` and by what chance does to it (the binomial's standard
        deviation). A verdict that no further request could change does not wait for enough of them.
        """
        old, new = self.of(self.old), self.of(self.new)
        if new.deaths > max(1, gates.most_errors * replicas):
            return Verdict("bad", f"{new.deaths} deaths of its replicas")
        compared = alone or old.ended >= gates.samples
        for what, bad, before in (
            ("requests failed", new.failed, old.failed),
            ("answers are senseless", new.odd, old.odd),
        ):
            share = min(1.0, (before / old.ended if old.ended else 0.0) + gates.most_errors)
            count = max(new.ended, gates.samples)
            if compared and bad > count * share + CHANCE * sqrt(count * share * (1 - share)):
                return Verdict(
                    "bad",
                    f"{bad} of {new.ended} {what}, {before} of {old.ended} at the old version "
                    f"(rollout.most_errors = {gates.most_errors:g})",
                )
        if new.ended < gates.samples or not compared:
            return Verdict(
                "wait",
                f"{new.ended} requests at the new version, {old.ended} at the old one "
                f"(rollout.samples = {gates.samples})",
            )
        both = [pool for version, pool in self.latency if version == self.new and (self.old, pool) in self.latency]
        if not both and any(version == self.old for version, _ in self.latency):
            return Verdict("wait", f"{new.ended} requests, too few of any one pool to tell how fast it is")
        slow = self._slower(gates.slower, both)
        if slow is None:
            self._slow_since = None
            return Verdict("good", f"{new.ended} requests, {new.failed} failed, {new.odd} senseless")
        if self._slow_since is None:
            self._slow_since = now
        return Verdict("bad" if now - self._slow_since >= SLOW_SECONDS else "wait", slow)

    def _slower(self, times: float, pools: list[str]) -> str | None:
        for pool in pools:
            old, new = self.latency[self.old, pool], self.latency[self.new, pool]
            for name, noise in NOISE.items():
                if old[name] > 0 and new[name] > times * old[name] and new[name] - old[name] > noise:
                    what = "to the first token" if name == "ttft" else "between tokens"
                    return (
                        f"pool {pool}: {1000 * new[name]:.0f} ms {what}, {1000 * old[name]:.0f} ms at the old "
                        f"version (rollout.slower = {times:g})"
                    )
        return None

    def median(self, version: str, name: str) -> float:
        """Over all pools, in seconds; 0 where nothing was measured."""
        found = [values[name] for (its, _), values in self.latency.items() if its == version and values[name] > 0]
        return median(found) if found else 0.0


def _median(services: list[Service], name: str) -> float:
    found = [value for service in services if (value := getattr(service, name)) > 0]
    return median(found) if found else 0.0
