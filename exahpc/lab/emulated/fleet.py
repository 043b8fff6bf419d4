"""EMULATED: `python -m exahpc.lab.emulated.fleet`: hundreds of agents in one process, each with all its replicas.

Real are the links to broker and entries, all that goes over them, and the agents' decisions about their replicas
(`agent.core`); the replicas are engines in this process, and requests skip the relay (`requests`). Each agent has
its own sockets, so that broker and entries meet as many peers as they would on so many nodes.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec
import uvloop

from exahpc.agent import events
from exahpc.agent.control import Control
from exahpc.agent.core import AgentCore
from exahpc.agent.entries import Entries
from exahpc.deployment.grid import kv_tokens
from exahpc.deployment.spec import Deployment, Pool
from exahpc.lab.emulated import program
from exahpc.lab.emulated.engine import Engine
from exahpc.lab.emulated.label import labelled, node_name
from exahpc.lab.emulated.model import Latency
from exahpc.lab.emulated.pretence import Pretence
from exahpc.lab.emulated.replicas import latency_of
from exahpc.lab.emulated.requests import Requests, To
from exahpc.telemetry.meters import AgentMeter
from exahpc.wire import link
from exahpc.wire.address import host_address
from exahpc.wire.folder import Folder
from exahpc.wire.messages import (
    AgentGone,
    AgentHello,
    Busy,
    Cancel,
    DrainAgent,
    Frames,
    ReplicaBeat,
    ReplicaState,
    RestartReplica,
    Submit,
    Welcome,
)

TICK_SECONDS = 0.5  # the real agent looks ten times as often: here a process has hundreds
_CANARY = 3, 4  # prompt tokens and answer of an agent's canary
_INCARNATIONS = 1000  # of one agent process's replicas: theirs need no file each

log = logging.getLogger(__name__)


class EmulatedAgent:
    """One task of `pool`. load_seconds: mean time from a replica's launch to its hello; busy: its replicas have
    news in every beat, as under load."""

    def __init__(
        self,
        folder: Folder,
        deployment: Deployment,
        pool: Pool,
        task: int,
        latency: Latency,
        load_seconds: float,
        busy: bool = False,
    ) -> None:
        self._busy = busy
        self._deployment, self._pool, self._task = deployment, pool, task
        self._latency, self._load_seconds = latency, load_seconds
        self._loop = asyncio.get_running_loop()
        self._incarnation = folder.claim_incarnation(pool.name, f"t{task}")
        self._replica = self._incarnation * _INCARNATIONS
        self._core = AgentCore(pool.slots_of_task(task), deployment.recovery, hand_back_code=1)
        self._requests = Requests()
        self._pretence = Pretence(pool.replicas_per_task) if busy else None
        self._measured = AgentMeter()
        self._steps: dict[int, asyncio.TimerHandle] = {}
        self._told: dict[int, ReplicaBeat] = {}
        self._ctx = link.context()
        host = host_address(deployment.launcher)
        self._entries = Entries(self._ctx, folder.fleet_key(), host, self._entry_said, self._entry_gone)
        self._control = Control(
            self._ctx,
            folder,
            self._hello,
            self._states,
            lambda: self._core.epoch,
            self._broker_said,
            deployment.recovery.beat_seconds,
            lambda send: self._measured.push(send, self._loop.time()),
        )
        self._closed = False
        self._control.open()
        self._ticking = self._loop.call_later(random.random() * TICK_SECONDS, self._tick)

    @property
    def requests(self) -> int:
        return len(self._requests)

    def _states(self) -> list[ReplicaState]:
        states = self._core.states(self._loop.time())
        return states if self._pretence is None else self._pretence.states(states)

    # --- the broker --------------------------------------------------------------------------------------------

    def _hello(self) -> AgentHello:
        return AgentHello(
            pool=self._pool.name,
            task=self._task,
            incarnation=self._incarnation,
            node=node_name(self._task),
            address=self._entries.address,
            job="",
            restarts=0,
            epoch=self._core.epoch,
            replicas=self._core.states(self._loop.time()),
            leases=[],
        )

    def _broker_said(self, message: Any) -> None:
        if isinstance(message, Welcome | RestartReplica | DrainAgent):
            self._emit(events.Order(message))

    # --- the core ----------------------------------------------------------------------------------------------

    def _emit(self, event: events.Event) -> None:
        for action in self._core.handle(event, self._loop.time()):
            self._perform(action)

    def _perform(self, action: events.Action) -> None:
        """What the real agent's shell does, with engines for steps. Answers come in a later turn of the loop."""
        later, core = self._loop.call_later, self._core
        match action:
            case events.Launch(slot):
                self._replica += 1
                born, hello = events.Launched(slot, self._replica), events.Hello(slot, self._replica)
                later(0, self._emit, born)
                later(self._load_seconds * (0.5 + random.random()), self._emit, hello)
            case events.Probe(slot, incarnation):
                seconds = self._latency.alone(*_CANARY)[1]
                later(seconds, self._emit, events.CanaryEnded(slot, incarnation, None))
            case events.Serve(slot, incarnation):
                self._requests.serve(slot, incarnation, self._engine())
            case events.Lost(slot, own_exit):
                self._send(self._requests.lost(slot, own_exit, self._loop.time()))
            case events.Stop(slot, incarnation) | events.Kill(slot, incarnation, _):
                ended = events.Ended(slot, incarnation, "emulated: ended as told", own_exit=False)
                later(0, self._emit, ended)
            case events.Tell():
                self._control.beat_soon()
            case events.Reconnect():
                self._loop.call_soon(self._control.reconnect)
            case events.Finish(_, reason, requeue, suspect):
                self._control.send(AgentGone(reason, requeue, suspect))
                later(0.3, self.close)  # the message must leave
            case events.CloseIntake():
                assert core.draining

    def _engine(self) -> Engine:
        context = self._deployment.model.context
        return Engine(
            self._latency,
            sequences=self._pool.max_sequences,
            kv_tokens=kv_tokens(self._pool, context),
            context=context,
        )

    # --- requests ----------------------------------------------------------------------------------------------

    def _entry_said(self, peer: bytes, message: Any) -> None:
        now = self._loop.time()
        match message:
            case Submit(slot=slot):
                busy = peer, Busy(message.request, message.attempt)
                answer = busy if self._core.draining else self._requests.submit(peer, message, now)
                if answer is not None:
                    self._entries.send(*answer)
                self._arm(slot)
            case Cancel(request):
                self._requests.cancel(peer, request, now)

    def _entry_gone(self, peer: bytes) -> None:
        self._requests.peer_gone(peer, self._loop.time())

    def _send(self, answers: Iterable[To]) -> None:
        for peer, message in answers:
            self._entries.send(peer, message)

    def _arm(self, slot: int) -> None:
        """Wake at the end of the step that this replica runs."""
        engine = self._requests.engines.get(slot)
        if engine is None or slot in self._steps:
            return
        due = engine.due()
        if due != math.inf:
            self._steps[slot] = self._loop.call_at(due, self._step, slot)

    def _step(self, slot: int) -> None:
        del self._steps[slot]
        engine = self._requests.engines.get(slot)
        if engine is None:
            return
        tokens = engine.advance(self._loop.time())
        if tokens is not None:
            self._emit(events.Moved(slot, self._requests.incarnations[slot], len(tokens.tokens)))
            frames, done = self._requests.step(slot, tokens)
            for peer, due in frames.items():
                self._entries.send(peer, Frames(due))
            self._send(done)
        self._arm(slot)

    # --- time --------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._ticking = self._loop.call_later(TICK_SECONDS, self._tick)
        now = self._loop.time()
        if self._pretence is not None:
            self._pretence.pass_time(self._measured, TICK_SECONDS)
        for slot, engine in self._requests.engines.items():
            beat = engine.beat()
            if self._busy:
                beat = msgspec.structs.replace(beat, steps=int(10 * now), kv_free=int(1000 * now))
            if self._told.get(slot) != beat:
                self._told[slot] = beat
                self._emit(
                    events.Beat(
                        slot,
                        self._requests.incarnations[slot],
                        beat.running,
                        beat.waiting,
                        beat.kv_free,
                        beat.steps,
                        (),
                        beat.prefix_hits,
                        beat.preemptions,
                    )
                )
        loads = self._requests.loads()
        self._entries.tell_room(loads, now)
        self._emit(events.Tick(frozenset(one.slot for one in loads if one.tokens), 0.0))

    def close(self) -> None:
        """Gone, as a node is."""
        if not self._closed:
            self._closed = True
            for timer in (self._ticking, *self._steps.values()):
                timer.cancel()
            self._control.close()
            self._entries.close()


async def serve(
    folder: Folder, pool: str, tasks: range, latency: Latency, load_seconds: float, busy: bool
) -> None:
    """Be the agents of these tasks for ever. Raises DeploymentError when the deployment is not labelled."""
    deployment = labelled(folder)
    make = partial(EmulatedAgent, folder, deployment, deployment.pool_named(pool))
    agents = [make(task, latency, load_seconds, busy) for task in tasks]
    log.info("%d emulated agents", len(agents))
    await asyncio.Event().wait()


@click.command()
@click.option("--folder", type=click.Path(exists=True, path_type=Path), required=True, help="Deployment's folder.")
@click.option("--pool", required=True)
@click.option("--first", type=int, default=0, help="First array task.")
@click.option("--count", type=int, required=True, help="Number of array tasks.")
@click.option("--latency", default="{}", help="What steps take, as JSON (exahpc.lab.emulated.model.Latency).")
@click.option("--load-seconds", default=1.0, help="Mean time that a replica takes to load.")
@click.option("--busy", is_flag=True, help="Replicas have news in every beat, as under load.")
def main(folder: Path, pool: str, first: int, count: int, latency: str, load_seconds: float, busy: bool) -> None:
    """Be emulated agents of a deployment whose model is named "emulated..."."""
    tasks = range(first, first + count)

    def work() -> None:
        link.require_descriptors(64 + 40 * count)
        uvloop.run(serve(Folder(folder), pool, tasks, latency_of(latency), load_seconds, busy))

    program.run(work)


if __name__ == "__main__":
    main()
