"""What the broker decides beyond who is alive: the pure policies, fed with what the fleet hears. Pure.

Each policy is a module of its own; this one gives all of them the same events, and turns what they want into
actions of the fleet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import assert_never

import msgspec

from exahpc.broker.entries import SILENCE_SECONDS
from exahpc.broker.fleet import Fleet
from exahpc.broker.health import Health
from exahpc.broker.illness import HandBack, Order, Restart, Weigh
from exahpc.broker.moving import Task
from exahpc.broker.rollout import Rollout
from exahpc.broker.values import AgentView, Decided, FleetAction
from exahpc.broker.versions import RolloutState
from exahpc.deployment.policy import Scaling
from exahpc.deployment.spec import Deployment, Pool
from exahpc.wire.messages import DrainAgent, EntryBeat, ReplicaState, RestartReplica


class Policies:
    """Times in seconds of the fleet's clock."""

    def __init__(self, deployment: Deployment, fleet: Fleet, now: float, rollout: Rollout | None = None) -> None:
        """rollout: as an earlier broker left it."""
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
        self._waiting: dict[bytes, tuple[float, int]] = {}

    def up(self, view: AgentView, now: float) -> list[FleetAction]:
        """An agent said hello, or is heard again."""
        self.rollout.up(view)
        self._health.up(view.key, (self._shapes[view.pool], view.version), view.node)
        return self.heard(view.key, self._fleet.replicas(view.key), now)

    def down(self, key: str, now: float) -> None:
        """An agent works no more."""
        self._health.down(key)

    def heard(self, key: str, replicas: Sequence[ReplicaState], now: float) -> list[FleetAction]:
        """News of an agent's replicas; when it comes up: all of them."""
        return self._care(self._health.heard(key, replicas, now))

    def entry(self, peer: bytes, beat: EntryBeat, now: float) -> None:
        """An entry told its load."""
        self._waiting[peer] = now, beat.waiting

    def tick(self, now: float) -> list[FleetAction]:
        """Call about once a second."""
        actions = self._care(self._health.tick(now))
        if not self.draining:
            actions += self.rollout.tick(self.tasks, self._waiting_requests(now), now)
            self._fleet.share(self.rollout.shares)
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
            )
            for view, _, _, replicas in self._fleet.snapshot()
        ]

    def _waiting_requests(self, now: float) -> int:
        """Of all entries that are heard."""
        self._waiting = {peer: told for peer, told in self._waiting.items() if now - told[0] < SILENCE_SECONDS}
        return sum(waiting for _, waiting in self._waiting.values())

    def notes(self, now: float) -> list[str]:
        """For `status`."""
        return self.rollout.notes() + self._health.notes()

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
