"""Which tasks of the pools with `[pool.scaling]` run: load divided over the pools, tasks parked and woken. Pure.

What entries tell is the load of the whole deployment. A pool's part of it is its part of the sequences that run;
when nothing runs anywhere, the part that it could take. Rows of batch files count as requests of
`max_tokens_default` tokens. The first tasks of a pool are kept, the last ones come and go.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from exahpc.broker.scaling import Load, PoolScaling
from exahpc.broker.values import AgentView
from exahpc.deployment.spec import Deployment
from exahpc.wire.messages import ReplicaState

_COMING = ("launching", "loading", "canary")
_CROWDED = 0.25  # of its room; KV cache may fill a replica long before its sequences do


class Demand(NamedTuple):
    """Of all entries and batches. tokens: outstanding; waiting: requests without a replica; oldest: seconds that
    the first of these waits; rows: of batches, not done yet."""

    tokens: int = 0
    waiting: int = 0
    oldest: float = 0.0
    rows: int = 0


class Change(NamedTuple):
    """Park a task (drain it, and do not miss it), or wake it."""

    key: str
    wake: bool


@dataclass
class PoolState:
    """What the fleet knows of a pool. sequences: that run or wait at its replicas; room: those that its ready ones
    run at once; coming: tasks that are wanted and not ready yet; kept, parked: its tasks by index."""

    sequences: int = 0
    room: int = 0
    coming: int = 0
    kept: list[int] = field(default_factory=list)
    parked: list[int] = field(default_factory=list)

    def add(self, view: AgentView, replicas: Iterable[ReplicaState]) -> None:
        phases = [replica.phase for replica in replicas]
        self.sequences += sum(replica.running + replica.waiting for replica in replicas)
        self.room += 0 if view.parked else phases.count("ready") * view.sequences
        (self.parked if view.parked else self.kept).append(view.task)
        if not view.parked and (view.phase != "alive" or not phases or any(p in _COMING for p in phases)):
            self.coming += 1


class Scaler:
    """asleep: no task of any pool is wanted, or the first ones are on their way back."""

    def __init__(self, deployment: Deployment) -> None:
        self._pools = {pool.name: pool for pool in deployment.pool}
        self._scaled: dict[str, PoolScaling] = {}
        self._row = deployment.limits.max_tokens_default
        self._replicas = deployment.wanted_replicas
        self._start = deployment.recovery.ready_seconds
        self.asleep = False

    @property
    def used(self) -> bool:
        """Whether any pool scales at all."""
        return any(pool.scaling.least is not None for pool in self._pools.values())

    def begin(self, states: dict[str, PoolState], now: float, *, fresh: bool) -> list[Change]:
        """fresh: nothing of an earlier broker is known; then all but the first tasks are parked."""
        changes: list[Change] = []
        for name, pool in self._pools.items():
            if pool.scaling.least is None:
                continue
            wanted = pool.first_tasks if fresh else len(states[name].kept)
            self._scaled[name] = PoolScaling(pool, wanted, now, proven=not fresh, start_seconds=self._start)
            changes += self._fit(name, states[name], wanted)
        self.asleep = not fresh and not any(state.kept for state in states.values())
        return changes

    def tick(
        self, demand: Demand, states: dict[str, PoolState], now: float, *, may_grow: bool = True
    ) -> list[Change]:
        """What changes now. may_grow: nodes may be asked for."""
        running = sum(state.sequences for state in states.values())
        tokens = demand.tokens + demand.rows * self._row
        changes: list[Change] = []
        for name, scaling in self._scaled.items():
            state, pool = states[name], self._pools[name]
            part = state.sequences / running if running else pool.replicas / self._replicas
            busy = bool(tokens * part or state.sequences or demand.waiting or demand.rows)
            # who waits for another length class or version needs no more of a pool that has room
            oldest = demand.oldest if state.sequences >= _CROWDED * state.room else 0.0
            load = Load(tokens * part, oldest, busy, state.coming)
            scaling.wanted = len(state.kept)  # a lost task may have been parked for want of budget
            changes += self._fit(name, state, scaling.decide(load, now, may_grow=may_grow))
        kept = sum(len(state.kept) for state in states.values())
        woken = sum(change.wake for change in changes)
        if not may_grow or any(state.room for state in states.values()):
            self.asleep = False
        elif kept + woken - (len(changes) - woken) == 0:
            self.asleep = True
        return changes

    def _fit(self, name: str, state: PoolState, wanted: int) -> list[Change]:
        """The first parked tasks are woken, the last kept ones are parked."""
        more = wanted - len(state.kept)
        if more >= 0:
            return [Change(f"{name}/{task}", True) for task in sorted(state.parked)[:more]]
        return [Change(f"{name}/{task}", False) for task in sorted(state.kept)[more:]]

    def notes(self, states: dict[str, PoolState]) -> list[str]:
        """For `status`."""
        return [
            f"pool {name}: {len(states[name].kept)} of {self._pools[name].tasks} tasks are wanted (pool.scaling)"
            for name in self._scaled
        ]
