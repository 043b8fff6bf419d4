"""The simulated head: the broker's real decisions, performed as `broker.main` and `broker.rebuilder` do it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import TYPE_CHECKING

from exahpc.broker.entries import Entries
from exahpc.broker.fleet import Fleet
from exahpc.broker.memory import Agent, Begun, Ended, Excluded, Memory, NoRequeue
from exahpc.broker.memory import Rollout as RolloutRecord
from exahpc.broker.policies import Policies
from exahpc.broker.publisher import DELAY, PACE
from exahpc.broker.recovery import Act, Recovery
from exahpc.broker.rollout import Rollout
from exahpc.broker.values import Changed, Decided, Down, FleetAction, InForce, RolloutMoved, Switch, Tell, Up
from exahpc.broker.versions import RolloutState
from exahpc.lab.simulate.cluster import Cluster
from exahpc.wire.messages import AgentBeat, AgentGone, AgentHello, EntryBeat, EntryHello, SwitchVersion

if TYPE_CHECKING:
    from exahpc.lab.simulate.host import Host
    from exahpc.lab.simulate.world import World

ASK, DEED = 0.3, 1.0
"""Seconds that Slurm takes to answer, and to do something."""
RECONNECT = 1.0
"""Seconds within which agents find a new broker."""


class Head:
    """One broker after the other; what they journal lives on in `memory`."""

    def __init__(self, world: World, cluster: Cluster) -> None:
        self._world, self._cluster = world, cluster
        self._timeline = world.timeline
        self._memory = Memory()
        self._epoch = 0
        self._alive = False
        self._peers = count(1)
        self._hosts: dict[bytes, Host] = {}
        self._table_at = 0.0
        self._planned = False
        self.deeds: list[tuple[float, str, str]] = []
        """(when, what, task) of all that Slurm was asked to do."""
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
        self.policies = Policies(deployment, self.fleet, now, rollout)
        self.recovery = Recovery(deployment, memory, now)
        self._entries = Entries()
        for gateway in self._world.gateways:
            self._entries.hello(gateway.peer, EntryHello(gateway.number, 0, ""), now)
        self.fleet.table()
        self._alive = True
        for host in list(self._world.hosts.values()):
            self._timeline.after(RECONNECT * self._world.random.random(), host.greet)
        self._publish()

    def kill(self) -> None:
        """The broker is gone, with what it was doing."""
        self._alive = False
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
        now = self._timeline.now
        for action in actions:
            match action:
                case Tell():
                    host = self._hosts.get(action.peer)
                    if host is not None:
                        self._timeline.after(0.0, host.heard, action.message)
                case Up():
                    self.recovery.up(action.view.key, action.view.job)
                    self._act(self.policies.up(action.view, now))
                case Down():
                    self.policies.down(action.key, now)
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
        now = self._timeline.now
        self._act(self.fleet.tick(now))
        self._act(self.policies.tick(now))
        self._entries.tick(now)
        if self.recovery.query_due(now, absent=any(True for _ in self.fleet.absent())):
            self._timeline.after(ASK, self._answer, self._epoch, now)
        for act in self.recovery.decide(self.fleet.absent(), now):
            self._memory.apply(Begun(at=now, key=act.key, kind=act.kind, job=act.job))
            if act.suspect:
                self._memory.apply(Excluded(at=now, node=act.suspect, why=act.why))
            self._timeline.after(DEED, self._perform, self._epoch, act)

    # --- Slurm -----------------------------------------------------------------------------------------------

    def _answer(self, epoch: int, asked: float) -> None:
        if epoch == self._epoch and self._alive:
            records = self._cluster.records()
            for pool, arrays in self._world.arrays.items():
                self.recovery.placed(pool, arrays, records)
            self.recovery.answered(records, asked)

    def _perform(self, epoch: int, act: Act) -> None:
        now, job, error = self._timeline.now, act.job, ""
        if self.fleet.peer_of(act.key) is not None:
            error = "not needed any more"
        else:
            self.deeds.append((now, act.kind, act.key))
            job = self._ask(act)
        if epoch == self._epoch and self.recovery.done(act.key, act.kind, job, error, now):
            self._memory.apply(NoRequeue(at=now, pool=act.key.rpartition("/")[0], why=error))
        self._memory.apply(Ended(at=now, key=act.key, kind=act.kind, job=job, error=error))

    def _ask(self, act: Act) -> str:
        name, _, task = act.key.rpartition("/")
        match act.kind:
            case "requeue":
                self._cluster.requeue(self._cluster.jobs[act.job], act.exclude)
            case "cancel":
                self._cluster.cancel(self._cluster.jobs[act.job])
            case "resubmit":
                pool = self._world.deployment.pool_named(name)
                return self._cluster.submit(pool, int(task), act.exclude)
        return act.job
