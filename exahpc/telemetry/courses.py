"""From looks at the fleet to rows of history, each tier from the first look on by itself. Pure.

Nothing is averaged twice: a row of ten minutes is made of what was counted in these ten minutes, its percentiles
of all observations in them. That is why tiers do not read each other's files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from exahpc.telemetry.aggregate import Aggregate
from exahpc.telemetry.histogram import Histogram
from exahpc.telemetry.window import Histograms
from exahpc.wire.messages import EntryFigures, Figures, Measure

HOUR, DAY = 3600, 86_400
MOST_GROUPS = 48
"""Series of pools and switches; further ones are not kept."""


@dataclass(frozen=True)
class Tier:
    """One resolution. step: seconds of a row; span: of one file; keep: until its files go; flush: between two
    writes, so much is lost when the broker is killed. All whole multiples of each other."""

    name: str
    step: int
    span: int
    keep: int
    flush: int


TIERS = (
    Tier("10s", 10, HOUR, 6 * HOUR, 60),
    Tier("1min", 60, 12 * HOUR, 7 * DAY, 300),
    Tier("10min", 600, 7 * DAY, 91 * DAY, 600),
)
"""Some 26,000 rows of about 120 bytes for each group: 3 MB before compression, 150 MB with MOST_GROUPS."""

_GAUGES = ("wanted", "ready", "ill", "silent", "running", "waiting", "kv", "utilization", "memory")
_COUNTS = ("requests", "failed", "odd", "tokens", "restarts", "prefix_hits", "preemptions")
_TIMES: tuple[Measure, ...] = ("ttft", "tbt", "e2e", "queue")
_SHARES = {"p50": 0.5, "p99": 0.99}

REPLICAS = (*_GAUGES, *_COUNTS, *(f"{measure}_{share}" for measure in _TIMES for share in _SHARES))
"""Columns of fleet, pools and switches. Gauges are means over the row's time, counts are what the row added,
percentiles are seconds; NaN where nothing is known."""
CLIENTS = (
    "running", "waiting", "ok", "refused", "too_many", "failed", "left", "resent", "busy", "known", "affine",
    *(f"{measure}_{share}" for measure in ("ttft", "e2e", "queue") for share in _SHARES),
)  # fmt: skip
"""Columns of all entries together: requests ended with 2xx, other 4xx, 429, 5xx, and by the client's leaving."""


class Sample(NamedTuple):
    """One look at one group. counts, histograms: since the broker began."""

    gauges: Mapping[str, float]
    counts: Mapping[str, int]
    histograms: Histograms


class Row(NamedTuple):
    """time: Unix seconds at which it begins; seconds: that it covers, fewer where the broker began in it."""

    time: int
    seconds: float
    values: Mapping[str, float]


class Course:
    """One group at one tier."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._slot = -1
        self._since = 0.0
        self._counts: dict[str, int] = {}
        self._before: dict[Measure, Histogram] = {}
        self._gauges: dict[str, tuple[float, int]] = {}

    def look(self, sample: Sample, now: float) -> Row | None:
        """The row that this look ends, if it does."""
        slot, row = int(now // self._step), None
        if slot != self._slot:
            if self._slot >= 0 and now > self._since:
                row = self._end(sample, now)
            self._begin(sample, slot, now)
        for name, value in sample.gauges.items():
            if value >= 0:
                total, count = self._gauges.get(name, (0.0, 0))
                self._gauges[name] = total + value, count + 1
        return row

    def _begin(self, sample: Sample, slot: int, now: float) -> None:
        self._slot, self._since, self._gauges = slot, now, {}
        self._counts, self._before = dict(sample.counts), {}
        for measure, histogram in sample.histograms.items():
            self._before[measure] = Histogram()
            self._before[measure].merge(histogram)

    def _end(self, sample: Sample, now: float) -> Row:
        values = {name: total / count for name, (total, count) in self._gauges.items()}
        for name, count in sample.counts.items():
            values[name] = float(count - self._counts.get(name, 0))
        for measure, histogram in sample.histograms.items():
            fresh = _minus(histogram, self._before.get(measure))
            for word, share in _SHARES.items():
                if (quantile := fresh.quantile(share)) is not None:
                    values[f"{measure}_{word}"] = quantile / 1e6
        return Row(self._slot * self._step, round(now - self._since, 1), values)


def _minus(now: Histogram, before: Histogram | None) -> Histogram:
    found = Histogram()
    earlier = before.counts if before else {}
    found.counts = {
        index: more for index, count in now.counts.items() if (more := count - earlier.get(index, 0)) > 0
    }
    return found


class Courses:
    """All groups at all tiers."""

    def __init__(self, tiers: Iterable[Tier] = TIERS) -> None:
        self._tiers = tuple(tiers)
        self._courses: dict[tuple[str, str], Course] = {}

    def look(self, samples: Mapping[str, Sample], now: float) -> list[tuple[Tier, str, Row]]:
        """(tier, group, row) of what is complete with this look. A group that is new or back begins anew."""
        rows = []
        for tier in self._tiers:
            for group, sample in samples.items():
                course = self._courses.get((tier.name, group))
                if course is None:
                    course = self._courses[tier.name, group] = Course(tier.step)
                if (row := course.look(sample, now)) is not None:
                    rows.append((tier, group, row))
        return rows


def columns(group: str) -> tuple[str, ...]:
    return CLIENTS if group == "clients" else REPLICAS


def samples(aggregate: Aggregate, now: float) -> dict[str, Sample]:
    """Of "fleet", "clients", "pool/NAME" and "switch/NAME", after a look."""
    found = {"clients": _of_clients(aggregate.entries(now), aggregate.totals("clients", ""))}
    for scope, name in aggregate.groups():
        if len(found) < MOST_GROUPS:
            group = f"{scope}/{name}" if name else scope
            found[group] = _of_replicas(aggregate.row(scope, name, now), aggregate.totals(scope, name))
    return found


def _of_replicas(row: Figures, totals: Histograms) -> Sample:
    gauges = {name: float(getattr(row, name)) for name in _GAUGES}
    counts = {name: int(getattr(row, name)) for name in _COUNTS}
    return Sample(gauges, counts, {name: totals[name] for name in _TIMES if name in totals})


def _of_clients(found: EntryFigures, totals: Histograms) -> Sample:
    statuses = found.statuses
    counts = {
        "ok": sum(n for status, n in statuses.items() if status < 400),
        "refused": sum(n for status, n in statuses.items() if 400 <= status < 500 and status not in (429, 499)),
        "too_many": statuses.get(429, 0),
        "failed": sum(n for status, n in statuses.items() if status >= 500),
        "left": statuses.get(499, 0),
        "resent": found.resent,
        "busy": found.busy,
        "known": found.known,
        "affine": found.affine,
    }
    gauges = {"running": float(found.in_flight), "waiting": float(found.waiting)}
    return Sample(gauges, counts, {name: totals[name] for name in _TIMES if name in totals})
