"""What a dashboard draws, in one small document; for `exahpc top` and for browsers. Pure.

An update for 3,072 replicas is about 18 kB: four bytes a replica, and the figures of fleet and pools. Where the
replicas are (the layout) changes seldom, and is left out for whoever has it already.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from exahpc.telemetry.map import STATES, UNKNOWN
from exahpc.wire.messages import (
    BatchStatus,
    EntryFigures,
    Figures,
    FleetFigures,
    FleetMap,
    MapTask,
    Measure,
    Recent,
    ReplicaStory,
)

MOST_POOLS = 16
Values = dict[str, Any]

_TIMES: frozenset[Measure] = frozenset(("ttft", "tbt", "e2e", "queue"))  # in microseconds


def glance(name: str, model: str, fleet: FleetMap, figures: FleetFigures) -> Values:
    """All but the layout. name, model: of the deployment; times are Unix seconds, durations seconds.

    cells: base64 of `FleetMap.cells`; unheard: indices of tasks that are not heard; rows: fleet, then pools.
    """
    rows = [row for row in figures.rows if row.scope in ("fleet", "pool")]
    return {
        "deployment": name,
        "model": model,
        "epoch": fleet.epoch,
        "at": fleet.at,
        "figures_at": figures.at,
        "cells": base64.b64encode(fleet.cells).decode(),
        "unheard": [index for index, task in enumerate(fleet.tasks) if not task.heard],
        "rows": [_row(row) for row in rows[: 1 + MOST_POOLS]],
        "clients": _clients(figures.entries),
        "alerts": [msgspec.structs.asdict(alert) for alert in figures.alerts],
        "batches": [_batch(batch) for batch in figures.batches],
    }


def layout(fleet: FleetMap) -> Values:
    """Where the replicas are. tasks: pool, node, switch, version (each but the node an index), first slot, and how
    many slots; id: the same for the same layout."""
    names: dict[str, dict[str, int]] = {"pools": {}, "switches": {}, "versions": {}}

    def number(kind: str, name: str) -> int:
        return names[kind].setdefault(name, len(names[kind]))

    tasks = [
        [
            number("pools", task.pool),
            task.node,
            number("switches", task.switch),
            number("versions", task.version),
            task.first,
            task.count,
        ]
        for task in fleet.tasks
    ]
    found: Values = {kind: list(known) for kind, known in names.items()}
    found |= {"states": STATES, "tasks": tasks}
    digest = hashlib.blake2b(msgspec.json.encode(found), digest_size=8).hexdigest()
    return {"id": digest, **found}


def cells(fleet: FleetMap) -> Iterable[tuple[MapTask, Values]]:
    """Each replica by name, for programs that read JSON: load 1.0 is as many sequences as it runs at once."""
    at = 0
    for task in fleet.tasks:
        for slot in range(task.first, task.first + task.count):
            state, load, kv, ttft = fleet.cells[at : at + 4]
            at += 4
            yield (
                task,
                {
                    "slot": slot,
                    "state": STATES[state],
                    "load": load / 100,
                    "kv": None if kv == UNKNOWN else kv / 100,
                    "ttft": None if ttft == UNKNOWN else seconds_of(ttft),
                },
            )


def seconds_of(ttft: int) -> float:
    """Of the fourth byte of a cell."""
    return round((math.exp2(ttft / 20) - 1) / 10, 4)


def story(found: ReplicaStory) -> Values:
    """Of one replica."""
    shown = msgspec.structs.asdict(found)
    del shown["query"]
    shown |= {"pool": found.query.pool, "slot": found.query.slot}
    shown["moments"] = [msgspec.structs.asdict(moment) for moment in found.moments]
    if found.state is not None:
        state = msgspec.structs.asdict(found.state)
        shown["state"] = state | {"service": msgspec.structs.asdict(found.state.service)}
    return shown


def _row(row: Figures) -> Values:
    return msgspec.structs.asdict(row) | {"recent": _recent(row.recent)}


def _recent(found: Mapping[Measure, Recent]) -> Values:
    shown: Values = {}
    for measure, recent in found.items():
        unit = 1e6 if measure in _TIMES else 1.0
        shares = {share: _short(getattr(recent, share) / unit) for share in ("p50", "p90", "p99")}
        shown[measure] = {"count": recent.count, **shares}
    return shown


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _clients(found: EntryFigures) -> Values:
    statuses = found.statuses
    return {
        "entries": found.entries,
        "running": found.in_flight,
        "waiting": found.waiting,
        "ended": sum(statuses.values()),
        "failed": sum(count for status, count in statuses.items() if status >= 500),
        "too_many": statuses.get(429, 0),
        "recent": _recent(found.recent),
    }


def _batch(status: BatchStatus) -> Values:
    """Without its folder and without what its rows said: whoever may ask the model need not know those."""
    shown = msgspec.structs.asdict(status)
    return {name: shown[name] for name in ("batch", "state", "total", "ok", "failed", "leased", "skipped")}
