"""The loop of one agent: carries events to the core and performs what it answers.

Events come from steps and replicas, from the broker, from signals and from time itself, every TICK_SECONDS.
Requests and batch rows do not pass here: see `traffic`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections import deque
from typing import Any, assert_never

import msgspec
import zmq

from exahpc.agent import events
from exahpc.agent.control import Control
from exahpc.agent.core import AgentCore
from exahpc.agent.leases import LeaseWorker
from exahpc.agent.relay import Relay
from exahpc.agent.replicas import Replica
from exahpc.agent.starter import Starter
from exahpc.agent.steps import Step
from exahpc.agent.traffic import Traffic
from exahpc.agent.utilization import Gauge
from exahpc.deployment.spec import Deployment, Pool
from exahpc.errors import ExahpcError
from exahpc.slurm import here
from exahpc.wire import link
from exahpc.wire.address import host_address
from exahpc.wire.folder import Folder, door
from exahpc.wire.messages import (
    AgentGone,
    AgentHello,
    DrainAgent,
    LeaseGrant,
    LeaseRevoke,
    LeaseWanted,
    Message,
    ReplicaState,
    RestartReplica,
    SwitchVersion,
    Welcome,
)

log = logging.getLogger(__name__)

TICK_SECONDS = 0.05
SYNC_SECONDS = 0.2
GAUGE_SECONDS = 5.0
TERM_DRAIN_SECONDS = 15.0  # Slurm kills 30 s after TERM (KillWait); stopping a replica takes up to 13 of them
WARNED_DRAIN_SECONDS = 60.0  # the warning comes 2 minutes before the end, give or take half a minute
FAREWELL_SECONDS = 0.3  # for the last messages to leave: closing a socket drops what is still in it


class Agent:
    """One task's agent, made inside the running loop. `run` returns its exit code."""

    def __init__(
        self,
        folder: Folder,
        deployment: Deployment,
        pool: Pool,
        task: int,
        *,
        incarnation: int,
        core: AgentCore,
        relay: Relay,
        worker: LeaseWorker,
        starter: Starter,
    ) -> None:
        """Raises LinkError when this node has no address."""
        self._pool, self._task, self._incarnation = pool, task, incarnation
        self._core, self._starter = core, starter
        self._name = f"{pool.name}/{task}"
        self._replicas: dict[int, Replica] = {}
        self._gauge = Gauge(pool.ranks_per_replica // pool.nodes_per_replica * pool.threads_per_rank)
        self._working: set[asyncio.Task[None]] = set()
        self._events: deque[events.Event] = deque()
        self._handling = False
        self._loop = asyncio.get_running_loop()
        self._finish: asyncio.Future[events.Finish] = self._loop.create_future()
        self._ctx: zmq.Context[zmq.Socket[bytes]] = link.context()
        self._traffic = Traffic(
            self._ctx,
            folder.fleet_key(),
            host_address(deployment.launcher),
            relay,
            worker,
            self._to_replica,
            self._ask_rows,
            door(folder.path, pool.name, task, incarnation),
        )
        self._control = Control(
            self._ctx,
            folder,
            self._hello,
            self._states,
            lambda: core.epoch,
            self._broker_said,
            deployment.recovery.beat_seconds,
            lambda send: relay.measured.push(send, self._loop.time()),
        )

    # --- life ---------------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Returns 0 (ended in order), 75 (hand this task back to Slurm) or another code (start me again).

        Raises what a defect raised: the supervisor starts the agent again, and the steps live on.
        """
        for step in await asyncio.to_thread(self._starter.adoptable, list(self._core.slots)):
            log.info("adopting slot %d, incarnation %d", step.record.slot, step.record.incarnation)
            self._emit(events.Adopted(step.record.slot, step.record.incarnation, step.record.ready))
            self._watch(step)
        self._loop.add_signal_handler(signal.SIGUSR1, self._warned)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._told_to_end, number)
        self._control.open()
        if os.environ.get("EXAHPC_WARNED"):  # the warning came while no agent lived
            self._warned()
        for work in (self._tick_for_ever(), self._sync_for_ever()):
            self._spawn(work, vital=True)
        self._spawn(self._gauge_for_ever())
        try:
            return await self._farewell(await self._finish)
        finally:
            for task in self._working:
                task.cancel()
            self._close()

    def _spawn(self, work: Any, *, vital: bool = False) -> None:
        """Run a coroutine beside the loop. vital: the agent fails with it."""
        task: asyncio.Task[None] = self._loop.create_task(work)
        self._working.add(task)

        def over(task: asyncio.Task[None]) -> None:
            self._working.discard(task)
            error = None if task.cancelled() else task.exception()
            if error is None:
                return
            log.error("%s", error, exc_info=error)
            if vital:
                self._fail(error)

        task.add_done_callback(over)

    def _fail(self, error: BaseException) -> None:
        if not self._finish.done():
            self._finish.set_exception(error)

    def _warned(self) -> None:
        """Walltime or preemption is near: finish, and let Slurm run this task again."""
        self._emit(events.Drain(WARNED_DRAIN_SECONDS, "Slurm's warning before the end", requeue=True))

    def _told_to_end(self, number: signal.Signals) -> None:
        """Somebody ends this task; whether it runs again is theirs to say."""
        self._emit(events.Drain(TERM_DRAIN_SECONDS, f"told to end ({number.name})", requeue=False))

    async def _farewell(self, finish: events.Finish) -> int:
        log.info("ending with code %d: %s", finish.code, finish.reason)
        self._traffic.flush()
        self._control.report(await self._traffic.sync())
        self._control.send(AgentGone(finish.reason, finish.requeue, finish.suspect))
        await asyncio.sleep(FAREWELL_SECONDS)
        for replica in self._replicas.values():  # past every deadline: the hard way
            replica.step.kill()
        if self._replicas:
            await asyncio.sleep(1.0)
        return finish.code

    def _close(self) -> None:
        self._control.close()
        self._traffic.close()
        for replica in self._replicas.values():
            replica.release()
        if not self._replicas:
            self._starter.leave()

    # --- the core -----------------------------------------------------------------------------------------

    def _emit(self, event: events.Event) -> None:
        """Hand one event to the core; events that its actions cause wait until those are all performed."""
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                for action in self._core.handle(self._events.popleft(), self._loop.time()):
                    self._perform(action)
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._handling = False

    def _perform(self, action: events.Action) -> None:
        match action:
            case events.Launch(slot):
                self._spawn(self._launch(slot))
            case events.Probe(slot, incarnation):
                log.info("slot %d, incarnation %d: loaded, canary", slot, incarnation)
                self._replicas[slot].probe()
            case events.Serve(slot, incarnation):
                log.info("slot %d, incarnation %d: ready", slot, incarnation)
                self._serve(self._replicas[slot])
            case events.Lost(slot, own_exit, story):
                self._traffic.lost(slot, own_exit=own_exit, story=story)
            case events.Stop(slot, _):
                self._replicas[slot].stop()
            case events.Kill(slot, incarnation, reason):
                log.warning("slot %d, incarnation %d: killed: %s", slot, incarnation, reason)
                self._replicas[slot].step.kill()
            case events.Tell():
                self._control.beat_soon()
            case events.CloseIntake(reason):
                log.info("nothing new from now on: %s", reason)
                self._traffic.close_intake()
            case events.Reconnect():
                self._loop.call_soon(self._control.reconnect)
            case events.Finish():
                if not self._finish.done():
                    self._finish.set_result(action)
            case _:
                assert_never(action)

    # --- steps --------------------------------------------------------------------------------------------

    async def _launch(self, slot: int) -> None:
        try:
            step = await asyncio.to_thread(self._starter.start, slot)
        except Exception as error:  # whatever it was, the core must have an answer
            expected = isinstance(error, OSError | ExahpcError)
            log.error("slot %d cannot be launched: %s", slot, error, exc_info=not expected)
            self._emit(events.LaunchFailed(slot, f"launch failed: {error}"))
            return
        log.info("slot %d, incarnation %d: launched as process %d", slot, step.record.incarnation, step.record.pid)
        self._watch(step)
        self._emit(events.Launched(slot, step.record.incarnation))

    def _watch(self, step: Step) -> None:
        self._replicas[step.record.slot] = Replica(
            step, self._name, self._step_said, self._traffic.tokens, self._traffic.no_room
        )

    def _step_said(self, event: events.Event) -> None:
        if isinstance(event, events.Ended):
            log.warning("slot %d, incarnation %d: ended: %s", event.slot, event.incarnation, event.story)
            self._replicas.pop(event.slot, None)
        self._emit(event)

    def _serve(self, replica: Replica) -> None:
        assert replica.hello is not None
        self._traffic.serve(replica.hello)
        self._spawn(asyncio.to_thread(replica.step.mark_ready))

    def _to_replica(self, slot: int, message: Message) -> None:
        if slot in self._replicas:  # a lost link shows by itself
            self._replicas[slot].send(message)

    # --- broker and time ----------------------------------------------------------------------------------

    def _hello(self) -> AgentHello:
        return AgentHello(
            pool=self._pool.name,
            task=self._task,
            incarnation=self._incarnation,
            node=self._starter.node,
            address=self._traffic.address,
            job=here.task_id() or "",
            restarts=here.restarts(),
            epoch=self._core.epoch,
            replicas=self._states(),
            leases=self._traffic.leases,
            version=self._core.version,
            sequences=self._pool.max_sequences,
            until=here.end_time(),
        )

    def _states(self) -> list[ReplicaState]:
        """All replicas, as the broker is told of them."""
        states = []
        for state in self._core.states(self._loop.time()):
            service = self._traffic.service(state.slot)
            service = msgspec.structs.replace(
                service, utilization=self._gauge.share(state.slot), memory=self._gauge.full(state.slot)
            )
            states.append(msgspec.structs.replace(state, service=service))
        return states

    def _ask_rows(self, rows: int) -> None:
        self._control.send(LeaseWanted(rows))  # without a broker: asked again after a while

    def _broker_said(self, message: Any) -> None:
        match message:
            case Welcome() | RestartReplica() | DrainAgent() | SwitchVersion():
                self._emit(events.Order(message))
            case LeaseGrant() if self._core.obeys(message.epoch):
                self._traffic.grant(message)
            case LeaseRevoke() if self._core.obeys(message.epoch):
                self._traffic.revoke(message)

    async def _tick_for_ever(self) -> None:
        last = self._loop.time()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = self._loop.time()
            slept, last = max(0.0, now - last - TICK_SECONDS), now
            self._emit(events.Tick(self._traffic.tick(), slept))

    async def _gauge_for_ever(self) -> None:
        while True:
            await asyncio.sleep(GAUGE_SECONDS)
            slots = self._core.slots
            self._gauge.look(
                {slot: r.step.record.socket for slot, r in self._replicas.items() if slots[slot].busy}
            )

    async def _sync_for_ever(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._traffic.granted.wait(), SYNC_SECONDS)
            self._control.report(await self._traffic.sync())
