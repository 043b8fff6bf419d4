"""What the broker decides beyond who is alive: the pure policies, fed with what the fleet hears. Pure.

Each policy is a module of its own; this one gives all of them the same events, and turns what they want into
actions of the fleet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import assert_never

import msgspec

from exahpc.broker.budget import Account
from exahpc.broker.entries import SILENCE_SECONDS
from exahpc.broker.fleet import Fleet
from exahpc.broker.health import Health
from exahpc.broker.illness import HandBack, Order, Restart, Weigh
from exahpc.broker.memory import Spent
from exahpc.broker.moving import AWAY_SECONDS, Task
from exahpc.broker.release import Release, Work
from exahpc.broker.rollout import Rollout
from exahpc.broker.scaler import Change, Demand, PoolState, Scaler
from exahpc.broker.values import NO_WORD, AgentView, Decided, FleetAction, JobWord
from exahpc.broker.versions import RolloutState
from exahpc.deployment.policy import Scaling
from exahpc.deployment.spec import Deployment, Pool
from exahpc.wire.messages import DrainAgent, EntryBeat, ReplicaState, RestartReplica


class Policies:
    """Times in seconds of the fleet's clock."""

    def __init__(
        self,
        deployment: Deployment,
        fleet: Fleet,
        now: float,
        rollout: Rollout | None = None,
        spent: Spent | None = None,
    ) -> None:
        """rollout, spent: as an earlier broker left them."""
        self._deployment, self._fleet = deployment, fleet
        self._shapes = {pool.name: _shape(pool) for pool in deployment.pool}
        self._health = Health(
            deployment.health,
            deployment.wanted_replicas,
            now,
            hand_back=deployment.launcher.kind == "slurm",
            before=fleet.lowered(),
        )
        self.rollout = rollout or Rollout(RolloutState(), deployment.rollout, deployment.routing.headroom)
        self.draining = False
        """The deployment is taken down: no version is changed any more."""
        self.account = Account(deployment.budget.node_hours, spent, now)
        """Node-hours; whoever has the fleet's clock ticks it."""
        self.said: Callable[[AgentView], JobWord] = lambda view: NO_WORD
        """What Slurm said of an absent task; set by whoever asks Slurm."""
        self.work = Work()
        """Of batches."""
        self._release = Release(deployment, now) if deployment.budget.release_idle else None
        self._scaler = Scaler(deployment)
        self._beats: dict[bytes, tuple[float, EntryBeat]] = {}

    def begin(self, now: float, *, fresh: bool) -> list[FleetAction]:
        """Call once, before anything is heard. fresh: nothing of an earlier broker is known."""
        changes = self._scaler.begin(self._states(), now, fresh=fresh)
        self._fleet.sleep(self._scaler.asleep)
        return [action for action in self._fit(changes, now) if not isinstance(action, Decided)]

    def up(self, view: AgentView, now: float) -> list[FleetAction]:
        """An agent said hello, or is heard again."""
        self.rollout.up(view)
        shape = self._shapes[view.pool]
        self._health.up(view.key, (shape, view.version), (shape.length, view.version), view.node)
        return self.heard(view.key, self._fleet.replicas(view.key), now)

    def down(self, key: str, now: float) -> None:
        """An agent works no more."""
        self._health.down(key)

    def heard(self, key: str, replicas: Sequence[ReplicaState], now: float) -> list[FleetAction]:
        """News of an agent's replicas; when it comes up: all of them."""
        return self._care(self._health.heard(key, replicas, now))

    def entry(self, peer: bytes, beat: EntryBeat, now: float) -> None:
        """An entry told its load."""
        self._beats[peer] = now, beat

    def entry_left(self, peer: bytes) -> None:
        """It has another connection now: its load must not count twice."""
        self._beats.pop(peer, None)

    def tick(self, now: float) -> list[FleetAction]:
        """Call about once a second."""
        actions = self._care(self._health.tick(now))
        if not self.draining:
            demand = self._demand(now)
            actions += self.rollout.tick(self.tasks, demand.waiting, now)
            self._fleet.share(self.rollout.shares)
            actions += self._scale(demand, now)
        return actions

    def tasks(self) -> list[Task]:
        """All tasks, as a rollout looks at them."""
        slots = {pool.name: pool for pool in self._deployment.pool}
        return [
            Task(
                view.key,
                view.pool,
                view.version,
                view.phase == "alive",
                len(slots[view.pool].slots_of_task(view.task)),
                view.sequences,
                tuple(replicas),
                self.said(view) if view.phase != "alive" else NO_WORD,
            )
            for view, _, _, replicas in self._fleet.snapshot()
            if not view.parked
        ]

    def _demand(self, now: float) -> Demand:
        """Of all entries that are heard."""
        self._beats = {peer: told for peer, told in self._beats.items() if now - told[0] < SILENCE_SECONDS}
        beats = [beat for _, beat in self._beats.values()]
        return Demand(
            sum(beat.outstanding for beat in beats),
            sum(beat.waiting for beat in beats),
            max((beat.oldest for beat in beats), default=0.0),
            self.work.rows,
        )

    def _scale(self, demand: Demand, now: float) -> list[FleetAction]:
        may_grow = not self.account.exhausted
        actions: list[FleetAction] = []
        if not may_grow:
            for view in list(self._fleet.absent()):
                if self._needs_node(view, now):
                    actions += self._fit([Change(view.key, False)], now)
        changes: list[Change] = []
        if self._release is not None:
            views = ((view, replicas) for view, _, _, replicas in self._fleet.snapshot())
            changes += self._release.tick(self.work, views, now, may_grow=may_grow)
        if self._scaler.used:
            changes += self._scaler.tick(demand, self._states(), now, may_grow=may_grow)
            self._fleet.sleep(self._scaler.asleep)
        if self.rollout.state.changing:  # it counts on the tasks that it has seen
            changes = [change for change in changes if change.wake]
        return actions + self._fit(changes, now)

    def _needs_node(self, view: AgentView, now: float) -> bool:
        """An absent task: one whose agent is started again in its job, for another version, does not."""
        if view.phase == "gone" and not view.handed_back and now - view.since < AWAY_SECONDS:
            word = self.said(view)
            return bool(word.over) or word.taken
        return view.phase != "expected"

    @property
    def over(self) -> bool:
        """The deployment has done what it was brought up for, and should end."""
        return self._release is not None and self._release.over

    def _states(self) -> dict[str, PoolState]:
        states = {pool.name: PoolState() for pool in self._deployment.pool}
        for view, _, _, replicas in self._fleet.snapshot():
            states[view.pool].add(view, replicas)
        return states

    def _fit(self, changes: Iterable[Change], now: float) -> list[FleetAction]:
        """Wake and park tasks."""
        actions: list[FleetAction] = []
        for key, wake in changes:
            if wake:
                actions += [Decided(f"{key} is wanted"), *self._fleet.unpark(key, now)]
            else:
                seconds = self._deployment.walltime.drain_seconds
                parked = self._fleet.park(key, seconds, "not needed now", now)
                actions += [Decided(f"{key} is not wanted any more"), *parked]
        return actions

    def notes(self, now: float) -> list[str]:
        """For `status`."""
        scaling = self._scaler.notes(self._states()) if self._scaler.used else []
        return self.rollout.notes() + self._health.notes() + scaling + self.account.note()

    def ill(self, key: str) -> list[tuple[int, str, str]]:
        """(slot, state, why) of an agent's replicas that are not healthy."""
        return self._health.ill(key)

    def _care(self, orders: Iterable[Order]) -> list[FleetAction]:
        """What health wants, as actions."""
        epoch, actions = self._fleet.epoch, list[FleetAction]()
        for order in orders:
            match order:
                case Weigh(key, slot, incarnation, weight, probe, what):
                    actions += [
                        Decided(what),
                        *self._fleet.weigh(key, slot, incarnation, weight, probe=probe),
                    ]
                case Restart(key, slot, incarnation, why):
                    actions += self._fleet.order(key, RestartReplica(epoch, slot, incarnation, why))
                case HandBack(key, why):
                    drain = DrainAgent(epoch, self._deployment.walltime.drain_seconds, why, requeue=True)
                    actions += [Decided(f"agent {key} is handed back: {why}"), *self._fleet.order(key, drain)]
                case _:
                    assert_never(order)
        return actions


def _shape(pool: Pool) -> Pool:
    """What makes a pool's replicas as fast as they are: pools alike in this are compared with each other."""
    return msgspec.structs.replace(pool, name="", replicas=1, replicas_per_task=1, requeue=True, scaling=Scaling())
