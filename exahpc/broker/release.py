"""Nodes that batches do not need any more are given back, and in the end the whole deployment. Pure.

Used where `budget.release_idle` is set: by deployments that `exahpc batch run --model` brings up. A row that
nobody has yet goes to whoever asks first. So a task is of no use only when all rows are leased, and those who hold
them can run them all at once; what a holder could not begin would be asked back for the idle one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from exahpc.broker.scaler import Change
from exahpc.broker.values import AgentView
from exahpc.deployment.spec import Deployment
from exahpc.wire.messages import ReplicaState

IDLE_SECONDS = 15.0
"""A task must be of no use for so long: rows come back when agents are lost."""
END_SECONDS = 300.0
"""Without any work for so long, nobody is coming any more: who began the batch has died."""


class Work(NamedTuple):
    """Of all open batches. rows: not done; waiting: those of them that no agent has; opening: some batch's rows
    are not known yet, or it cannot be written that they are done; holders: agents that have rows."""

    rows: int = 0
    waiting: int = 0
    opening: bool = False
    holders: frozenset[str] = frozenset()


class Release:
    """Times in seconds of the fleet's clock."""

    def __init__(self, deployment: Deployment, now: float) -> None:
        self._pools = {pool.name: pool for pool in deployment.pool}
        first = f"{deployment.pool[0].name}/0"
        self._head = first if deployment.head.placement == "first-task" else None
        self._parks = deployment.launcher.kind == "slurm"  # a machine has nobody to give itself back to
        self._began = False
        self._idle: dict[str, float] = {}
        self._worked = now
        self.over = False
        """The deployment should end."""

    def tick(
        self,
        work: Work,
        tasks: Iterable[tuple[AgentView, Sequence[ReplicaState]]],
        now: float,
        *,
        may_grow: bool = True,
    ) -> list[Change]:
        """Call about once a second with all tasks. may_grow: nodes may be asked for."""
        seen = list(tasks)
        kept = [(view, replicas) for view, replicas in seen if not view.parked]
        busy = {view.key for view, replicas in kept if view.key in work.holders or _sequences(replicas)}
        self._began |= bool(work.rows)
        if work.rows or work.opening or busy:
            self._worked = now
        self.over = now >= self._worked + END_SECONDS
        wake = self._wake(work, seen, kept) if may_grow else []
        return wake or self._park(work, kept, busy, now)

    def _park(
        self, work: Work, kept: list[tuple[AgentView, Sequence[ReplicaState]]], busy: set[str], now: float
    ) -> list[Change]:
        room = sum(self._room(view) for view, _ in kept if view.key in work.holders)
        spare = self._parks and self._began and not (work.waiting or work.opening) and work.rows <= room
        idle = [view.key for view, _ in kept if view.key not in busy and view.key != self._head] if spare else []
        self._idle = {key: self._idle.get(key, now) for key in idle}
        return [Change(key, False) for key, since in self._idle.items() if now >= since + IDLE_SECONDS]

    def _wake(
        self,
        work: Work,
        seen: list[tuple[AgentView, Sequence[ReplicaState]]],
        kept: list[tuple[AgentView, Sequence[ReplicaState]]],
    ) -> list[Change]:
        """As many as bring the room to the rows."""
        lacking = work.rows - sum(self._room(view) for view, _ in kept)
        changes: list[Change] = []
        for view, _ in seen:
            if lacking <= 0:
                break
            if view.parked:
                changes.append(Change(view.key, True))
                lacking -= self._room(view)
        return changes

    def _room(self, view: AgentView) -> int:
        """Sequences that a task runs at once."""
        pool = self._pools[view.pool]
        return (view.sequences or pool.max_sequences) * len(pool.slots_of_task(view.task))


def _sequences(replicas: Iterable[ReplicaState]) -> int:
    return sum(replica.running + replica.waiting for replica in replicas)
