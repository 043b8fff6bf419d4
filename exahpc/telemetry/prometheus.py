"""The fleet's figures in Prometheus' text format. Pure.

A prefix for each scope, so that sums never count anything twice. Histograms are cumulative since the broker began,
and end their buckets where octaves of microseconds (or tokens) end: those counts are exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from exahpc.telemetry.histogram import Histogram
from exahpc.wire.messages import EntryFigures, Figures, FleetFigures, Measure, Scope, Sketch

_SCOPES: tuple[Scope, ...] = ("fleet", "pool", "switch", "node", "replica")
_MICRO = 1e-6
_ABOUT: dict[Measure, tuple[str, str, float, range]] = {
    "ttft": ("ttft_seconds", "Time to the first token.", _MICRO, range(10, 31)),
    "tbt": ("tbt_seconds", "Time between tokens, each token counted.", _MICRO, range(8, 27)),
    "e2e": ("e2e_seconds", "Time from request to the end of its answer.", _MICRO, range(10, 34)),
    "queue": ("queue_seconds", "Time in line before the first attempt.", _MICRO, range(8, 31)),
    "prompt": ("prompt_tokens", "Tokens of a prompt.", 1.0, range(3, 21)),
    "output": ("output_tokens", "Tokens of an answer.", 1.0, range(0, 18)),
}
_GAUGES = (
    ("replicas_wanted", "wanted", "Replicas that are wanted."),
    ("replicas_ready", "ready", "Replicas that have answered a canary and are not lost."),
    ("replicas_ill", "ill", "Ready replicas that the broker takes for ill."),
    ("replicas_silent", "silent", "Replicas that are not heard: no other gauge counts them."),
    ("sequences_running", "running", "Sequences that run."),
    ("sequences_waiting", "waiting", "Sequences that wait at a replica."),
    ("token_rate", "token_rate", "Tokens a second, lately."),
)
_COUNTERS = (
    ("requests", "requests", "Requests and batch rows that replicas ended well."),
    ("failures", "failed", "Those that ended by a fault of a replica."),
    ("odd", "odd", "Well ended ones that look senseless."),
    ("tokens", "tokens", "Tokens generated."),
    ("restarts", "restarts", "Restarts of replicas."),
    ("prefix_hits", "prefix_hits", "Prompt tokens that were found in the prefix cache."),
    ("preemptions", "preemptions", "Sequences that had to give way."),
)
_SHARES = (
    ("kv_share", "kv", "Share of the KV cache in use, mean."),
    ("utilization_share", "utilization", "Busy share of the accelerators, mean."),
    ("memory_share", "memory", "Share of accelerator memory in use, highest."),
)
"""Left out where nobody can tell."""


def page(figures: FleetFigures) -> bytes:
    """All of an answer of the broker."""

    class Page:
        def collect(self) -> Iterable[Metric]:
            yield from _broker(figures)
            yield from _entries(figures.entries)
            for scope in _SCOPES:
                rows = [row for row in figures.rows if row.scope == scope]
                if rows:
                    yield from _rows(scope, rows)
            yield from _histograms("pool", ["pool"], {(name,): s for name, s in figures.sketches.items() if name})

    return generate_latest(cast(Any, Page()))


def _broker(figures: FleetFigures) -> Iterator[Metric]:
    yield _gauge("exahpc_figures_time_seconds", "Unix time of the fleet's figures.", figures.at)
    yield _gauge("exahpc_broker_epoch", "Number of the broker.", figures.epoch)
    yield _gauge("exahpc_rows_left_out", "Rows of nodes and replicas that did not fit.", figures.left_out)
    firing = GaugeMetricFamily("exahpc_alert_firing", "1 while an alert fires.", labels=["alert"])
    value = GaugeMetricFamily("exahpc_alert_value", "What the alert looks at.", labels=["alert"])
    for alert in figures.alerts:
        firing.add_metric([alert.name], float(alert.state in ("firing", "resolving")))
        if alert.value is not None:
            value.add_metric([alert.name], alert.value)
    yield from (firing, value)


def _entries(found: EntryFigures) -> Iterator[Metric]:
    yield _gauge("exahpc_client_entries", "HTTP entries that the broker hears.", found.entries)
    yield _gauge("exahpc_client_requests_running", "Requests that replicas work on.", found.in_flight)
    yield _gauge("exahpc_client_requests_waiting", "Requests in line.", found.waiting)
    ended = CounterMetricFamily("exahpc_client_requests", "Ended requests by HTTP status.", labels=["status"])
    for status, count in sorted(found.statuses.items()):
        ended.add_metric([str(status)], count)
    refused = CounterMetricFamily("exahpc_client_refused", "Ended by an entry itself, by code.", labels=["code"])
    for code, count in sorted(found.refused.items()):
        refused.add_metric([code], count)
    yield from (ended, refused)
    for name, about, count in (
        ("resent", "Attempts that were repeated on another replica.", found.resent),
        ("busy", "Attempts that a full replica refused.", found.busy),
        ("prefix_known", "Requests of whose prompt some replica had the beginning.", found.known),
        ("prefix_affine", "Those that were sent there.", found.affine),
    ):
        yield CounterMetricFamily(f"exahpc_client_{name}", about, value=count)
    yield from _histograms("client", [], {(): found.sketches})


def _rows(scope: Scope, rows: list[Figures]) -> Iterator[Metric]:
    names: list[str] = [] if scope == "fleet" else [scope]
    labels = [[] if scope == "fleet" else [row.name] for row in rows]
    for name, field, about in _GAUGES + _SHARES:
        gauge = GaugeMetricFamily(f"exahpc_{scope}_{name}", about, labels=names)
        for row, label in zip(rows, labels, strict=True):
            if (value := getattr(row, field)) >= 0:
                gauge.add_metric(label, value)
        yield gauge
    for name, field, about in _COUNTERS:
        counter = CounterMetricFamily(f"exahpc_{scope}_{name}", about, labels=names)
        for row, label in zip(rows, labels, strict=True):
            counter.add_metric(label, getattr(row, field))
        yield counter
    yield from _recent(scope, rows, names, labels)


def _recent(scope: Scope, rows: list[Figures], names: list[str], labels: list[list[str]]) -> Iterator[Metric]:
    """Percentiles of the last minute; of single replicas medians only."""
    for measure, (name, about, unit, _) in _ABOUT.items():
        gauge = GaugeMetricFamily(
            f"exahpc_{scope}_recent_{name}", f"{about} Last minute.", labels=[*names, "quantile"]
        )
        for row, label in zip(rows, labels, strict=True):
            if (found := row.recent.get(measure)) is not None:
                gauge.add_metric([*label, "0.5"], found.p50 * unit)
                if scope != "replica":
                    gauge.add_metric([*label, "0.9"], found.p90 * unit)
                    gauge.add_metric([*label, "0.99"], found.p99 * unit)
        if gauge.samples:
            yield gauge


def _histograms(
    prefix: str, labels: list[str], found: dict[tuple[str, ...], dict[Measure, Sketch]]
) -> Iterator[Metric]:
    for measure, (name, about, unit, powers) in _ABOUT.items():
        family = HistogramMetricFamily(f"exahpc_{prefix}_{name}", about, labels=labels)
        for values, sketches in found.items():
            if (sketch := sketches.get(measure)) is None:
                continue
            histogram = Histogram.of(sketch)
            buckets = [(repr(edge * unit), float(n)) for edge, n in histogram.octaves(powers[0], powers[-1])]
            buckets.append(("+Inf", float(histogram.count)))
            family.add_metric(list(values), buckets, sum_value=histogram.total * unit)
        if family.samples:
            yield family


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(name, about, value=value)
