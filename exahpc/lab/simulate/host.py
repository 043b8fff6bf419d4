"""A simulated agent process: the real `AgentCore`, steps that load as long as the machine says, and replicas that
follow the latency model.

What the product's shell does between messages (sockets, tokenizer, text) takes no time here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from exahpc.agent import events
from exahpc.agent.core import AgentCore
from exahpc.agent.service import Meter
from exahpc.deployment.grid import kv_tokens
from exahpc.deployment.spec import Deployment
from exahpc.entry.fleet import Agent
from exahpc.lab.emulated.model import Batch
from exahpc.lab.simulate.relay import Relay
from exahpc.lab.simulate.replica import Replica
from exahpc.lab.simulate.room import Room
from exahpc.lab.simulate.steps import Place, Step
from exahpc.wire.messages import (
    AgentBeat,
    AgentGone,
    AgentHello,
    BrokerToAgent,
    DrainAgent,
    ReplicaHello,
    ReplicaState,
    RestartReplica,
    SwitchVersion,
    Welcome,
)

if TYPE_CHECKING:
    from exahpc.lab.simulate.gateway import Gateway
    from exahpc.lab.simulate.world import World

LAUNCH, CANARY, STOP, KILL, FAREWELL = 0.5, 0.2, 1.0, 0.5, 0.3
"""Seconds: from an order to a step's start, of the canary, from an order to the end of a step that is asked or
killed, and of the agent's last words."""
TICK = 0.25
"""While something is unusual; a healthy agent only looks at each beat. (The product: every 50 ms.)"""


class Host:
    """One agent process. steps: those on its node, to be adopted; `ready`: they serve at once (how a simulation
    begins)."""

    def __init__(self, world: World, place: Place, version: str, steps: list[Step]) -> None:
        self._world, self._timeline = world, world.timeline
        self._deployment: Deployment = world.deployments[version]
        self.place, self.version = place, version
        self.incarnation = world.next_incarnation(place.key)
        self.address = f"{place.key}.{self.incarnation}"
        self.alive = True
        self.links: dict[Gateway, Agent] = {}
        self.steps = {step.slot: step for step in steps}
        room = Room(world.timeline, world.scenario.machine.room_seconds, self.links)
        self.relay = Relay(world.timeline, version, world.versions[version], world.random.random, room)
        self.peer: bytes | None = None
        recovery = self._deployment.recovery
        self.core = AgentCore(place.pool.slots_of_task(place.task), recovery, version=version)
        self._events: deque[events.Event] = deque()
        self._handling = self._telling = self._ticking = False
        self._busy: frozenset[int] = frozenset()
        for step in steps:
            self.emit(events.Adopted(step.slot, step.incarnation, step.ready))
            self._timeline.after(0.0, self._loaded, step)
        self.fuss()
        self._timeline.after(0.0, self.greet)
        draw = world.random.random
        self._timeline.after(recovery.beat_seconds * draw(), self._beat_and_again)

    # --- the core --------------------------------------------------------------------------------------------

    def emit(self, event: events.Event) -> None:
        """Hand one event to the core; events that its actions cause wait until those are performed."""
        if not self.alive:
            return
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        while self._events and self.alive:
            for action in self.core.handle(self._events.popleft(), self._timeline.now):
                self._perform(action)
        self._handling = False

    def _perform(self, action: events.Action) -> None:
        after = self._timeline.after
        match action:
            case events.Launch(slot):
                self.fuss()
                after(LAUNCH, self._launched, slot)
            case events.Probe(slot, _):
                after(CANARY, self._answered, self.steps[slot])
            case events.Serve(slot, _):
                self._serve(self.steps[slot])
            case events.Lost(slot, own_exit):
                self.lost(slot, own_exit=own_exit)
            case events.Stop(slot, _):
                if not self.steps[slot].frozen:
                    after(STOP, self.end_step, self.steps[slot], "stopped")
            case events.Kill(slot, _, reason):
                after(KILL, self.end_step, self.steps[slot], reason)
            case events.Tell():
                self.fuss()
                if not self._telling:
                    self._telling = True
                    after(0.0, self._told)
            case events.CloseIntake():
                self.fuss()
                self.relay.draining = True
            case events.Finish():
                after(FAREWELL, self._finished, action)
            case events.Reconnect():
                after(1.0, self.greet)

    # --- steps -----------------------------------------------------------------------------------------------

    def _launched(self, slot: int) -> None:
        if not self.alive:
            return
        step = self.steps[slot] = Step(slot, self._world.next_incarnation(slot), self._world.speed())
        self.emit(events.Launched(slot, step.incarnation))
        self._timeline.after(self._world.load_seconds(), self._loaded, step)

    def _loaded(self, step: Step) -> None:
        if not step.ended and not step.frozen:
            self.emit(events.Hello(step.slot, step.incarnation))

    def _answered(self, step: Step) -> None:
        if not step.ended and not step.frozen:
            self.emit(events.CanaryEnded(step.slot, step.incarnation))

    def _serve(self, step: Step) -> None:
        step.ready = True
        pool, health = self.place.pool, self._deployment.health
        tokens = kv_tokens(pool, self._deployment.model.context)
        hello = ReplicaHello(
            pool.name, step.slot, step.incarnation, pool.max_sequences, tokens, self._deployment.model.context, ""
        )
        batch = Batch(self._world.scenario.replica, pool.max_sequences, tokens, self.pace(step))
        batch.advance(self._timeline.now)
        self.lost(step.slot, own_exit=False)
        meter = Meter(health.window_requests, health.rest_seconds, self._world.measured)
        self.relay.serve(Replica(hello, batch, meter))
        if step.frozen:
            self.relay.change(step.slot, frozen=True)
        self._world.serving += 1

    def pace(self, step: Step) -> float:
        """How many times as long as usual this one takes, with the version that it serves."""
        return step.slow * self._world.versions[self.version].times

    def lost(self, slot: int, *, own_exit: bool) -> None:
        """The replica takes nothing any more, and what it ran goes back."""
        if self.relay.lost(slot, f"replica {slot} was lost under this request", own_exit=own_exit):
            self._world.serving -= 1

    def end_step(self, step: Step, story: str, own_exit: bool = False) -> None:
        """All processes of the step are gone."""
        if step.ended:
            return
        step.ended = True
        if self.steps.get(step.slot) is step:
            del self.steps[step.slot]
        self.emit(events.Ended(step.slot, step.incarnation, story, own_exit))

    # --- the end ---------------------------------------------------------------------------------------------

    def drain(self, seconds: float, why: str, *, requeue: bool) -> None:
        """Slurm's warning, or its TERM."""
        self.emit(events.Drain(seconds, why, requeue))

    def _finished(self, finish: events.Finish) -> None:
        if not self.alive:
            return
        self._world.head.said(self.peer, AgentGone(finish.reason, finish.requeue, finish.suspect))
        self.killed()
        self._world.ended(self, finish)

    def killed(self) -> None:
        """The process is gone: who was connected notices at once. Its steps live on."""
        self._gone()
        for gateway, agent in list(self.links.items()):
            self._timeline.after(0.0, gateway.lost, agent)

    def vanished(self, noticed: float) -> None:
        """The node is gone: whoever was connected notices after so many seconds."""
        for step in self.steps.values():
            step.ended = True
        self._gone()
        for gateway, agent in list(self.links.items()):
            self._timeline.after(noticed, gateway.lost, agent)

    def _gone(self) -> None:
        self.alive = False
        self._world.serving -= len(self.relay.replicas)
        self.relay.vanish()

    # --- the broker ------------------------------------------------------------------------------------------

    def greet(self) -> None:
        """Open a connection to the broker, if there is one."""
        if not self.alive:
            return
        place, now = self.place, self._timeline.now
        self.peer = self._world.head.connect(self)
        if self.peer is not None:
            hello = AgentHello(
                pool=place.pool.name,
                task=place.task,
                incarnation=self.incarnation,
                node=place.node,
                address=self.address,
                job=place.job,
                restarts=place.restarts,
                epoch=self.core.epoch,
                replicas=[self._state(slot, now) for slot in self.core.slots],
                leases=[],
                version=self.version,
                until=place.until,
                sequences=place.pool.max_sequences,
            )
            self._world.head.said(self.peer, hello)

    def heard(self, message: BrokerToAgent) -> None:
        """An order of the broker."""
        match message:
            case Welcome() | RestartReplica() | DrainAgent() | SwitchVersion():
                self.emit(events.Order(message))

    def _state(self, slot: int, now: float) -> ReplicaState:
        """As `agent.main` tells it, with what the meter says."""
        state = self.core.slots[slot].state(now)
        replica = self.relay.replicas.get(slot)
        if replica is None:
            return state
        return msgspec.structs.replace(state, service=replica.service(now))

    def _told(self) -> None:
        """A phase changed: a beat about all."""
        self._telling = False
        self._beat(self.core.slots)

    def _beat(self, slots: Iterable[int]) -> None:
        if self.alive and self.peer is not None:
            now = self._timeline.now
            self._world.head.said(self.peer, AgentBeat(0, [self._state(slot, now) for slot in slots]))

    def _beat_and_again(self) -> None:
        if not self.alive:
            return
        if not self._ticking:
            self._look()
        slots, self.relay.touched = sorted(self.relay.touched | self._busy), set()
        self._beat(slots)
        self._timeline.after(self._deployment.recovery.beat_seconds, self._beat_and_again)

    # --- time ------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """What replicas did since the last look, and that time has passed."""
        core, now = self.core, self._timeline.now
        found = self.relay.look()
        for slot, (tokens, batch) in found.items():
            number = core.slots[slot].incarnation
            if tokens > 0:
                core.handle(events.Moved(slot, number, tokens), now)  # this and a beat cause nothing
            self._replica_beat(slot, batch, now)
        for slot in self._busy - found.keys():
            if slot in self.relay.replicas:
                self._replica_beat(slot, self.relay.replicas[slot].batch, now)
        if found or self._busy or self._ticking:
            self._busy = frozenset(found)
            self.emit(events.Tick(self._busy))

    def _replica_beat(self, slot: int, batch: Batch, now: float) -> None:
        """What a replica tells its agent of itself."""
        free = batch.kv_tokens - batch.kv
        number = self.core.slots[slot].incarnation
        self.core.handle(events.Beat(slot, number, batch.running, batch.waiting, free, int(batch.steps)), now)

    def fuss(self) -> None:
        """Something is unusual: look often until it is over."""
        if not self._ticking:
            self._ticking = True
            self._timeline.after(0.0, self._tick)

    def _tick(self) -> None:
        if not self.alive:
            return
        self._look()
        unusual = self.relay.draining or any(slot.phase != "ready" for slot in self.core.slots.values())
        self._ticking = unusual or any(step.frozen for step in self.steps.values())
        if self._ticking:
            self._timeline.after(TICK, self._tick)
