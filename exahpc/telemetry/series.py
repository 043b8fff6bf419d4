"""History as a dashboard draws it: a few columns, no more points than a chart has room for."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

from exahpc.telemetry import store


class Span(NamedTuple):
    """How far back, and seconds of a row; 360 rows at most."""

    seconds: int
    step: int


SPANS = {"1h": Span(3600, 10), "6h": Span(21_600, 60), "2d": Span(172_800, 600)}

_FLEET = ("ill", "running", "waiting", "kv", "utilization", "memory", "ttft_p50", "ttft_p99")
_FLEET_RATES = ("tokens", "requests", "failed")
_CLIENTS_RATES = ("ok", "failed", "too_many")


def series(history: Path, span: Span, now: float) -> dict[str, Any]:
    """Columns by group, each with its own times; rates are per second, what is not known is None.

    history: the folder; may wait for its file system. now: Unix time.
    """
    groups = (("fleet", _FLEET, _FLEET_RATES), ("clients", ("ttft_p99", "e2e_p99"), _CLIENTS_RATES))
    found: dict[str, Any] = {"seconds": span.seconds, "step": span.step}
    for group, gauges, rates in groups:
        rows = store.read(history, group, now - span.seconds, now, span.step).rows
        columns: dict[str, list[Any]] = {"time": [int(time) for time in rows["time"]]}
        for name in gauges:
            columns[name] = [_short(value) for value in rows[name]]
        if group == "fleet":
            columns["unready"] = [_short(value) for value in rows["wanted"] - rows["ready"]]
        for name in rates:
            pairs = zip(rows[name], rows["seconds"], strict=True)
            columns[f"{name}_rate"] = [_short(value / max(0.1, seconds)) for value, seconds in pairs]
        found[group] = columns
    return found


def _short(value: float) -> float | None:
    return None if math.isnan(value) else float(f"{value:.4g}")
