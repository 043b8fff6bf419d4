"""The simulated head: the broker's real decisions, performed as `broker.main` and `broker.rebuilder` do it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import TYPE_CHECKING, cast

from exahpc.broker.cluster import Cluster
from exahpc.broker.entries import Entries
from exahpc.broker.fleet import Fleet
from exahpc.broker.journal import Journal
from exahpc.broker.memory import Agent, Memory
from exahpc.broker.memory import Rollout as RolloutRecord
from exahpc.broker.policies import Policies
from exahpc.broker.publisher import DELAY, PACE
from exahpc.broker.rebuilder import Rebuilder
from exahpc.broker.recovery import Recovery
from exahpc.broker.rollout import Rollout
from exahpc.broker.succession import Succession
from exahpc.broker.successors import Successors
from exahpc.broker.values import (
    Changed,
    Coming,
    Decided,
    Down,
    FleetAction,
    InForce,
    Lapsed,
    Loaded,
    Retired,
    RolloutMoved,
    Switch,
    Tell,
    Up,
)
from exahpc.broker.versions import RolloutState
from exahpc.lab.simulate.hands import Notebook, Slurm, Virtual
from exahpc.wire.messages import AgentBeat, AgentGone, AgentHello, EntryBeat, EntryHello, SwitchVersion

if TYPE_CHECKING:
    from exahpc.lab.simulate.host import Host
    from exahpc.lab.simulate.world import World

RECONNECT = 1.0
"""Seconds within which agents find a new broker."""


class Head:
    """One broker after the other; what they journal lives on in `memory`."""

    def __init__(self, world: World) -> None:
        self._world, self._timeline = world, world.timeline
        self.slurm = Slurm(world.timeline, world.cluster)
        self._memory = Memory()
        self._epoch = 0
        self._alive = False
        self._peers = count(1)
        self._hosts: dict[bytes, Host] = {}
        self._table_at = 0.0
        self._planned = False
        self.decisions: list[tuple[float, str]] = []
        self.start()
        self._timeline.every(1.0, self._tick, 1.0)

    # --- life ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """The next epoch, from what was journalled."""
        now, deployment = self._timeline.now, self._world.deployment
        memory = Memory()
        for record in self._memory.records(now):
            memory.apply(record)
        self._memory = memory
        self._epoch += 1
        self.fleet = Fleet(deployment, self._epoch, now, memory.carried(), memory.replaced)
        state = memory.rollout.state if memory.rollout is not None else RolloutState()
        gates = self._world.deployments[state.new].rollout
        rollout = Rollout(state, gates, deployment.routing.headroom)
        self.policies = Policies(deployment, self.fleet, now, rollout, memory.spent)
        self._loops = Virtual(self._timeline)
        recovery = Recovery(deployment, memory, now, dice=self._world.random.random)
        self.policies.said = recovery.said
        recovery.network.learn({node.name: f"s{node.switch}" for node in self._world.cluster.nodes})
        slurm, notebook = cast(Cluster, self.slurm), cast(Journal, Notebook(memory))
        hands = (self.fleet, notebook, lambda: self._timeline.now, self._loops.spawn)
        successors = Successors(slurm, Succession(deployment, memory, now), recovery, *hands)
        self._rebuilder = Rebuilder(slurm, recovery, successors, *hands)
        self._entries = Entries()
        for gateway in self._world.gateways:
            self._entries.hello(gateway.peer, EntryHello(gateway.number, 0, ""), now)
        self.fleet.table()
        self._alive = True
        self._act(self.policies.begin(now, fresh=not memory.agents))
        for host in list(self._world.hosts.values()):
            self._timeline.after(RECONNECT * self._world.random.random(), host.greet)
        self._publish()

    def kill(self) -> None:
        """The broker is gone, with what it was doing."""
        self._alive = False
        self._loops.end()
        self._hosts.clear()

    # --- messages --------------------------------------------------------------------------------------------

    def connect(self, host: Host) -> bytes | None:
        """A connection of this agent; None while no broker lives."""
        if not self._alive:
            return None
        peer = b"%d" % next(self._peers)
        self._hosts[peer] = host
        return peer

    def said(self, peer: bytes | None, message: AgentHello | AgentBeat | AgentGone) -> None:
        """What an agent said; nothing of older connections is heard."""
        if peer is None or peer not in self._hosts:
            return
        now = self._timeline.now
        match message:
            case AgentHello():
                self._act(self.fleet.hello(peer, message, now))
            case AgentBeat():
                self._act(self.fleet.beat(peer, message, now))
                if message.replicas and (key := self.fleet.key_of(peer)) is not None:
                    self._act(self.policies.heard(key, message.replicas, now))
                    self._act(self._rebuilder.successors.heard(key, message.replicas))
            case AgentGone():
                self._act(self.fleet.gone(peer, message, now))

    def entry(self, peer: bytes, beat: EntryBeat) -> None:
        """An entry's beat."""
        if self._alive:
            now = self._timeline.now
            self._entries.beat(peer, beat, now)
            self.policies.entry(peer, beat, now)

    def roll_out(self, version: str) -> None:
        """`exahpc rollout start`. Raises DeploymentError when that cannot be."""
        gates = self._world.deployments[version].rollout
        self._act(self.policies.rollout.start(version, gates, self.policies.tasks(), self._timeline.now))

    # --- actions ---------------------------------------------------------------------------------------------

    def _act(self, actions: Iterable[FleetAction]) -> None:
        now, successors = self._timeline.now, self._rebuilder.successors
        for action in actions:
            match action:
                case Tell():
                    host = self._hosts.get(action.peer)
                    if host is not None:
                        self._timeline.after(0.0, host.heard, action.message)
                case Up():
                    self._rebuilder.up(action.view)
                    self._act(self.policies.up(action.view, now))
                case Down():
                    self.policies.down(action.key, now)
                case Coming():
                    successors.coming(action.view)
                case Lapsed():
                    successors.lapsed(action.view)
                case Loaded():
                    successors.loaded(action.view, action.seconds)
                case Retired():
                    successors.retired(action.key, action.job)
                case Changed():
                    self._memory.apply(Agent.of(action.view, action.route, now))
                case Decided():
                    self.decisions.append((now, action.what))
                case Switch():
                    self._world.assigned[action.key] = action.version
                    switch = SwitchVersion(self._epoch, action.version, action.seconds)
                    self._act(self.fleet.order(action.key, switch))
                case InForce():
                    self._world.in_force = action.version
                case RolloutMoved():
                    self._memory.apply(RolloutRecord(now, action.state))
                case _:
                    pass
        if self.fleet.dirty and not self._planned:
            self._planned = True
            self._timeline.at(max(now + DELAY, self._table_at), self._publish)

    def _publish(self) -> None:
        self._planned = False
        self._table_at = self._timeline.now + PACE
        table = self.fleet.table() if self._alive else None
        if table is not None:
            for gateway in self._world.gateways:
                gateway.table(table)

    def _tick(self) -> None:
        if not self._alive:
            return
        now, policies = self._timeline.now, self.policies
        self._act(self.fleet.tick(now))
        self._act(policies.tick(now))
        self._rebuilder.frozen = policies.account.exhausted
        if (spent := policies.account.tick(self.fleet.nodes, now)) is not None:
            self._memory.apply(spent)
        self._entries.tick(now)
        self._loops.spawn(self._rebuilder.turn())
