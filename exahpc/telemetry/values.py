"""What the alerts look at, from the fleet's figures. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from exahpc.deployment.spec import Deployment
from exahpc.telemetry.aggregate import Aggregate
from exahpc.telemetry.meters import CLIENT_LEFT
from exahpc.telemetry.window import Window
from exahpc.wire.messages import Figures, Measure, Recent

LEAST = 20
"""Requests in the last minute below which a share or a percentile of them says nothing."""


@dataclass
class Readings:
    """What has to be remembered between two looks. begun: when the deployment's broker began."""

    deployment: Deployment
    begun: float
    complete: bool = False
    """All wanted replicas were ready once."""
    replicas: Window = field(default_factory=Window)
    """Endings at the replicas, batch rows too."""
    before: tuple[int, int] = (0, 0)


def values_of(aggregate: Aggregate, readings: Readings, now: float) -> dict[str, float | None]:
    """By rule (`alerts.rules`). None: nobody can tell."""
    fleet = aggregate.row("fleet", "", now)
    entries = aggregate.entries(now)
    requests, failed = readings.before
    more = {"all": fleet.requests + fleet.failed - requests - failed, "failed": fleet.failed - failed}
    readings.before = fleet.requests, fleet.failed
    readings.replicas.add(now, {}, more)
    room = readings.deployment.limits.max_waiting * entries.entries
    return {
        "error_rate": error_rate(aggregate.statuses(now), readings.replicas.counts(now)),
        "p99": p99(entries.recent),
        "utilization": _known(fleet.utilization),
        "memory": _known(fleet.memory),
        "queue": entries.waiting / room if room else None,
        "replicas": _live(fleet, readings, now),
    }


def error_rate(statuses: Mapping[int, int], endings: Mapping[str, int]) -> float | None:
    """Of the clients' requests, or of all that replicas ended: the worse one."""
    ended = sum(count for status, count in statuses.items() if status != CLIENT_LEFT)
    failed = sum(count for status, count in statuses.items() if status >= 500)
    shares = [(failed, ended), (endings.get("failed", 0), endings.get("all", 0))]
    return max((bad / count for bad, count in shares if count >= LEAST), default=None)


def p99(recent: Mapping[Measure, Recent]) -> float | None:
    """Seconds to the first token, as clients see it."""
    ttft = recent.get("ttft")
    return ttft.p99 / 1e6 if ttft is not None and ttft.count >= LEAST else None


def _live(fleet: Figures, readings: Readings, now: float) -> float | None:
    """While the fleet comes up for the first time there is nothing to miss."""
    if fleet.wanted == 0:
        return None
    late = now - readings.begun > readings.deployment.recovery.ready_seconds
    readings.complete |= fleet.ready >= fleet.wanted or late
    return min(1.0, fleet.ready / fleet.wanted) if readings.complete else None


def _known(share: float) -> float | None:
    return share if share >= 0 else None
