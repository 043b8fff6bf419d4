"""Laws of the fleet at a glance."""

from __future__ import annotations

from typing import get_args

import msgspec

from exahpc.broker import illness
from exahpc.telemetry.aggregate import Aggregate
from exahpc.telemetry.map import STATES, UNKNOWN, State, fleet_map
from exahpc.telemetry.tally import Seen
from exahpc.wire.messages import FleetMap, MapTask, ReplicaPhase, ReplicaState, Service


def seen(task: int, *replicas: ReplicaState, per_task: int = 2, **more: object) -> Seen:
    made = Seen(
        f"a/{task}", "a", f"node-{task:04}", 1, True, per_task, 1000, list(replicas), first=task * per_task
    )
    return made._replace(version="v2", sequences=8, **more)


def map_of(*tasks: Seen) -> FleetMap:
    found = Aggregate(1, {"node-0000": "s0"}, 0.0)
    found.look(tasks, [], 10.0)
    return fleet_map(found)


def test_every_state_of_a_replica_has_a_number() -> None:
    assert get_args(State) == STATES
    for ill in set(get_args(illness.State)) - {"healthy"}:
        assert ill in STATES
    for phase in get_args(ReplicaPhase):
        found = map_of(seen(0, ReplicaState(0, 1, phase)))
        assert STATES[found.cells[0]] in ("down", "loading", "ready", "draining")


def test_cells_stand_in_the_order_of_slots_and_tell_what_is_known() -> None:
    service = Service(ttft=0.3, samples=5)
    one = ReplicaState(1, 1, "ready", running=8, waiting=4, kv_free=250, service=service)
    found = map_of(seen(0, one, ill={1: "degraded"}))
    assert found.tasks == [MapTask("a", "node-0000", "s0", "v2", 0, 2, True)]
    missing, cell = found.cells[:4], found.cells[4:]
    assert (STATES[missing[0]], *missing[1:]) == ("missing", 0, UNKNOWN, UNKNOWN)
    assert (STATES[cell[0]], *cell[1:]) == ("degraded", 150, 75, 40)


def test_a_task_that_is_not_heard_keeps_its_cells_and_one_that_is_not_wanted_has_none() -> None:
    ready = ReplicaState(0, 1, "ready", running=1, kv_free=1)
    found = Aggregate(1, {}, 0.0)
    found.look([seen(0, ready, per_task=1), seen(1, per_task=1)._replace(slots=0)], [], 0.0)
    before = fleet_map(found)
    found.look([seen(0, per_task=1, heard=False), seen(1, per_task=1)._replace(slots=0)], [], 10.0)
    after = fleet_map(found)
    assert after.cells == before.cells
    assert [task.heard for task in after.tasks] == [False]


def test_3072_replicas_fit_in_an_update_of_a_dashboard() -> None:
    tasks = [seen(t, *(ReplicaState(t * 12 + s, 1, "ready") for s in range(12)), per_task=12) for t in range(256)]
    found = map_of(*tasks)
    assert len(found.cells) == 4 * 3072
    assert len(msgspec.msgpack.encode(found)) < 25_000
