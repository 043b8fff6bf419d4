"""The fleet at a glance: four bytes a replica, for whoever draws all of it. Pure."""

from __future__ import annotations

import math
from typing import Literal

from exahpc.telemetry.aggregate import Aggregate
from exahpc.telemetry.tally import Seen, kv_share
from exahpc.wire.messages import FleetMap, MapTask, ReplicaState

State = Literal[
    "missing", "down", "loading", "draining", "ready", "degraded", "tripped", "probing", "silent", "restarting"
]  # fmt: skip
STATES: tuple[State, ...] = (
    "missing", "down", "loading", "draining", "ready", "degraded", "tripped", "probing", "silent",
    "restarting",
)  # fmt: skip
"""missing: never heard of; loading: launched, not yet ready; the last five: ready, but ill (`broker.illness`)."""
UNKNOWN = 255
MOST = 254
_PHASES: dict[str, State] = {
    "down": "down", "launching": "loading", "loading": "loading", "canary": "loading", "draining": "draining",
    "ready": "ready",
}  # fmt: skip
_MISSING = bytes((0, 0, UNKNOWN, UNKNOWN))


def fleet_map(aggregate: Aggregate) -> FleetMap:
    """As of the last look; tasks that are not wanted are left out."""
    tasks, cells = [], []
    for seen in aggregate.seen:
        if seen.slots or seen.replicas:
            found = {replica.slot: replica for replica in seen.replicas}
            count = max(seen.slots, len(found))
            slots = range(seen.first, seen.first + count)
            switch = aggregate.leaves.get(seen.node, "")
            tasks.append(MapTask(seen.pool, seen.node, switch, seen.version, seen.first, count, seen.heard))
            cells += [_cell(seen, found[slot]) if slot in found else _MISSING for slot in slots]
    return FleetMap(aggregate.epoch, aggregate.at, tasks, b"".join(cells))


def state_of(seen: Seen, replica: ReplicaState) -> State:
    """Of one of the task's replicas: its phase, or what is wrong with it."""
    state = _PHASES[replica.phase]
    if state == "ready" and (ill := seen.ill.get(replica.slot)) in STATES:
        return ill
    return state


def _cell(seen: Seen, replica: ReplicaState) -> bytes:
    load = round(100 * (replica.running + replica.waiting) / max(1, seen.sequences))
    kv, ttft = kv_share(replica, seen.kv), replica.service.ttft
    return bytes(
        (
            STATES.index(state_of(seen, replica)),
            min(MOST, load),
            UNKNOWN if kv < 0 else round(100 * kv),
            UNKNOWN if not replica.service.samples else min(MOST, round(20 * math.log2(1 + 10 * ttft))),
        )
    )
