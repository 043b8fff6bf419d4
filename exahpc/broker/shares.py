"""How the traffic is spread over two versions. Pure.

Room is what ready replicas of a version run at once, in sequences; load what there is to run, headroom included.
"""

from __future__ import annotations

from collections.abc import Iterable

from exahpc.broker.moving import Task
from exahpc.broker.versions import RolloutState
from exahpc.deployment.policy import Rollout as Gates
from exahpc.wire.messages import Share


def proportional(room: int, other: int) -> float:
    """By room alone; everything where neither has any."""
    return room / (room + other) if other else 1.0


def cautious(room: int, other: int, load: float, share: float) -> float:
    """`share`: less where there is less room, more where the other version alone cannot take the load."""
    most = proportional(room, other) if room else 0.0
    needed = 1.0 - other / load if load > 0 else 0.0
    return min(most, max(needed, share))


def eager(room: int, other: int, load: float) -> float:
    """Everything, as far as there is room."""
    least = proportional(room, other)
    if room == 0:
        return least
    return max(least, min(1.0, room / load) if load > 0 else 1.0)


def spread(state: RolloutState, gates: Gates, tasks: Iterable[Task], load: float) -> list[Share]:
    """Of requests that name no version: little for the canary, then by room, from `rollout.switch` on everything;
    on the way back everything for the old version. Adds up to 1."""
    if state.old == state.new:
        return [Share(state.current, 1.0)]
    rooms = {state.old: 0, state.new: 0}
    for task in tasks:
        if task.version in rooms:
            rooms[task.version] += task.room
    old, new = rooms[state.old], rooms[state.new]
    match state.phase:
        case "canary" | "judging":
            share = cautious(new, old, load, gates.canary)
        case "widening" if proportional(new, old) < gates.switch:
            share = proportional(new, old)
        case "widening" | "done":
            share = eager(new, old, load)
        case _:
            share = 1.0 - eager(old, new, load)
    share = round(share, 2)
    return [Share(state.old, round(1.0 - share, 2)), Share(state.new, share)]
