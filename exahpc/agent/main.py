"""The loop of one agent: carries events to the core and performs what it answers.

One turn: messages arrive (entries, broker, replicas), each is handled at once; after the burst the frames that are
due go out; every TICK_SECONDS time itself is an event, batch rows are offered and room is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections import deque
from typing import Any, assert_never

import zmq

from exahpc.agent import events, relay
from exahpc.agent.control import Control
from exahpc.agent.core import AgentCore
from exahpc.agent.entries import Entries
from exahpc.agent.leases import LeaseWorker
from exahpc.agent.relay import Relay
from exahpc.agent.replicas import Replica
from exahpc.agent.starter import Starter
from exahpc.agent.steps import Step
from exahpc.deployment.spec import Deployment, Pool
from exahpc.errors import ExahpcError
from exahpc.openai.body import Kind
from exahpc.slurm import here
from exahpc.wire import link
from exahpc.wire.address import host_address
from exahpc.wire.folder import Folder
from exahpc.wire.messages import (
    AgentGone,
    AgentHello,
    Cancel,
    DrainAgent,
    LeaseGrant,
    LeaseRevoke,
    LeaseWanted,
    NoRoom,
    RestartReplica,
    Submit,
    Tokens,
    Welcome,
)

log = logging.getLogger(__name__)

TICK_SECONDS = 0.05
SYNC_SECONDS = 0.2
TERM_DRAIN_SECONDS = 15.0  # Slurm kills 30 s after TERM (KillWait); stopping a replica takes up to 13 of them
WARNED_DRAIN_SECONDS = 60.0  # the warning comes 2 minutes before the end, give or take half a minute
FAREWELL_SECONDS = 0.3  # for the last messages to leave: closing a socket drops what is still in it


class Agent:
    """One task's agent. `run` returns its exit code: 0, 75 (hand back to Slurm), or another (start me again)."""

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
        self._folder, self._deployment, self._pool, self._task = folder, deployment, pool, task
        self._incarnation, self._core, self._relay, self._worker = incarnation, core, relay, worker
        self._starter = starter
        self._name = f"{pool.name}/{task}"
        self._replicas: dict[int, Replica] = {}
        self._launching: set[asyncio.Task[None]] = set()
        self._events: deque[events.Event] = deque()
        self._handling = False
        self._feeding = True
        self._flushing = False
        self._granted = asyncio.Event()
        self._control: Control
        self._loop: asyncio.AbstractEventLoop
        self._finish: asyncio.Future[events.Finish]

    # --- life ---------------------------------------------------------------------------------------------

    async def run(self) -> int:
        self._loop = asyncio.get_running_loop()
        self._finish = self._loop.create_future()
        self._ctx: zmq.Context[zmq.Socket[bytes]] = link.context()
        self._entries = Entries(
            self._ctx,
            self._folder.fleet_key(),
            host_address(self._deployment.launcher),
            self._entry_said,
            lambda peer: self._act(self._relay.peer_gone(peer)),
        )
        self._control = Control(
            self._ctx,
            self._folder,
            self._hello,
            lambda: self._core.states(self._loop.time()),
            lambda: self._core.epoch,
            self._broker_said,
            self._deployment.recovery.beat_seconds,
        )
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
        ticking = self._loop.create_task(self._tick_for_ever())
        syncing = self._loop.create_task(self._sync_for_ever())
        try:
            done, _ = await asyncio.wait((self._finish, ticking, syncing), return_when=asyncio.FIRST_COMPLETED)
            if self._finish not in done:
                done.pop().result()  # raises: a defect; the supervisor starts us again, the steps live on
            return await self._farewell(self._finish.result())
        finally:
            for task in (ticking, syncing, *self._launching):
                task.cancel()
            self._close()

    def _warned(self) -> None:
        """Walltime or preemption is near: finish, and let Slurm run this task again."""
        self._emit(events.Drain(WARNED_DRAIN_SECONDS, "Slurm's warning before the end", requeue=True))

    def _told_to_end(self, number: signal.Signals) -> None:
        """Somebody ends this task; whether it runs again is theirs to say."""
        self._emit(events.Drain(TERM_DRAIN_SECONDS, f"told to end ({number.name})", requeue=False))

    async def _farewell(self, finish: events.Finish) -> int:
        log.info("ending with code %d: %s", finish.code, finish.reason)
        self._relay_flush()
        self._control.report(await self._worker.sync())
        self._control.send(AgentGone(finish.reason, finish.requeue))
        await asyncio.sleep(FAREWELL_SECONDS)
        for replica in self._replicas.values():  # past every deadline: the hard way
            replica.step.kill()
        if self._replicas:
            await asyncio.sleep(1.0)
        return finish.code

    def _close(self) -> None:
        self._control.close()
        self._entries.close()
        for replica in self._replicas.values():
            replica.release()
        if not self._replicas:
            self._starter.leave()

    def _hello(self) -> AgentHello:
        return AgentHello(
            pool=self._pool.name,
            task=self._task,
            incarnation=self._incarnation,
            node=socket.gethostname(),
            address=self._entries.address,
            job=here.task_id() or "",
            restarts=int(os.environ.get("SLURM_RESTART_COUNT") or 0),
            epoch=self._core.epoch,
            replicas=self._core.states(self._loop.time()),
            leases=self._worker.leases,
        )

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
            if not self._finish.done():
                self._finish.set_exception(error)
            raise
        finally:
            self._handling = False

    def _perform(self, action: events.Action) -> None:
        match action:
            case events.Launch(slot):
                task = self._loop.create_task(self._launch(slot))
                self._launching.add(task)
                task.add_done_callback(self._launching.discard)
            case events.Probe(slot, incarnation):
                log.info("slot %d, incarnation %d: loaded, canary", slot, incarnation)
                self._replicas[slot].probe()
            case events.Serve(slot, incarnation):
                log.info("slot %d, incarnation %d: ready", slot, incarnation)
                self._serve(self._replicas[slot])
            case events.Lost(slot, own_exit):
                self._act(self._relay.replica_gone(slot, own_exit=own_exit))
            case events.Stop(slot, _):
                self._replicas[slot].stop()
            case events.Kill(slot, incarnation, reason):
                log.warning("slot %d, incarnation %d: killed: %s", slot, incarnation, reason)
                self._replicas[slot].step.kill()
            case events.Tell():
                self._control.beat_soon()
            case events.CloseIntake(reason):
                log.info("nothing new from now on: %s", reason)
                self._feeding = False
                self._worker.drain()
                self._relay.drain()
                self._act(self._relay.stop_rows())
            case events.Reconnect():
                self._loop.call_soon(self._control.reconnect)
            case events.Finish():
                if not self._finish.done():
                    self._finish.set_result(action)
            case _:
                assert_never(action)

    async def _launch(self, slot: int) -> None:
        try:
            step = await asyncio.to_thread(self._starter.start, slot)
        except Exception as error:  # whatever it was, the core must have an answer
            log.error("slot %d cannot be launched", slot, exc_info=not isinstance(error, OSError | ExahpcError))
            self._emit(events.LaunchFailed(slot, f"launch failed: {error}"))
            return
        log.info("slot %d, incarnation %d: launched as process %d", slot, step.record.incarnation, step.record.pid)
        self._watch(step)
        self._emit(events.Launched(slot, step.record.incarnation))

    def _watch(self, step: Step) -> None:
        slot = step.record.slot
        self._replicas[slot] = Replica(self._ctx, step, self._name, self._step_said, self._tokens, self._no_room)

    def _step_said(self, event: events.Event) -> None:
        if isinstance(event, events.Ended):
            log.warning("slot %d, incarnation %d: ended: %s", event.slot, event.incarnation, event.story)
            self._replicas.pop(event.slot, None)
        self._emit(event)

    def _serve(self, replica: Replica) -> None:
        assert replica.hello is not None
        self._act(self._relay.replica_up(replica.hello))
        task = self._loop.create_task(asyncio.to_thread(replica.step.mark_ready))
        self._launching.add(task)
        task.add_done_callback(self._launching.discard)

    # --- requests -----------------------------------------------------------------------------------------

    def _act(self, actions: list[relay.Action]) -> None:
        for action in actions:
            match action:
                case relay.ToPeer(peer, message):
                    self._entries.send(peer, message)
                case relay.ToReplica(slot, message):
                    if slot in self._replicas:  # a lost link shows by itself
                        self._replicas[slot].send(message)
                case relay.RowEnded():
                    self._worker.ended(
                        action.key, action.status, action.body, action.prompt_tokens, action.completion_tokens
                    )
                case relay.RowLost(key, own_exit):
                    self._worker.lost(key, own_exit)
                case _:
                    assert_never(action)

    def _entry_said(self, peer: bytes, message: Any) -> None:
        match message:
            case Submit():
                self._act(self._relay.submit(peer, message, self._loop.time()))
            case Cancel(request):
                self._act(self._relay.cancel(peer, request))
        self._flush_soon()

    def _tokens(self, slot: int, message: Tokens) -> None:
        self._act(self._relay.tokens(slot, message, self._loop.time()))
        self._flush_soon()

    def _no_room(self, slot: int, message: NoRoom) -> None:
        self._act(self._relay.no_room(slot, message))
        self._flush_soon()

    def _flush_soon(self) -> None:
        """Flush once after the burst that is being handled, so that frames of one link share a message."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        self._relay_flush()
        self._feed()

    def _relay_flush(self) -> None:
        self._act(self._relay.flush(self._loop.time()))

    # --- batch --------------------------------------------------------------------------------------------

    def _feed(self) -> None:
        """Offer batch rows to replicas that have room which online requests do not want."""
        if not self._feeding:
            return
        free = {slot: self._relay.free(slot) for slot in self._replicas}
        for slot, count in free.items():
            for row in self._worker.next_rows(count) if count > 0 else []:
                kind: Kind = "chat" if row.kind == "chat" else "completion"
                self._act(self._relay.row(row.key, kind, row.body, row.seed, slot, self._loop.time()))
        if self._control.up and (rows := self._worker.wanted(sum(free.values()))):
            self._control.send(LeaseWanted(rows))

    async def _sync_for_ever(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._granted.wait(), SYNC_SECONDS)
            self._granted.clear()
            self._control.report(await self._worker.sync())
            self._flush_soon()

    # --- broker and time ----------------------------------------------------------------------------------

    def _broker_said(self, message: Any) -> None:
        match message:
            case Welcome() | RestartReplica() | DrainAgent():
                self._emit(events.Order(message))
            case LeaseGrant() if self._core.obeys(message.epoch) and self._feeding:
                self._worker.grant(message)
                self._granted.set()
            case LeaseRevoke() if self._core.obeys(message.epoch):
                self._worker.revoke(message.lease, message.soft)

    async def _tick_for_ever(self) -> None:
        last = self._loop.time()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = self._loop.time()
            slept, last = max(0.0, now - last - TICK_SECONDS), now
            room = self._relay.room()
            busy = frozenset(slot for slot, outstanding in room if outstanding)
            self._emit(events.Tick(busy, slept))
            self._flush()
            self._entries.tell_room(room, self._loop.time())
