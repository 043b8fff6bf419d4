"""The broker's loop: messages and clock ticks into the pure cores, their actions out to links, journal and Slurm.

Control only: no request, token or batch row passes here. When it dies, entries and agents go on with the last
table; see `docs/explanation/broker.md`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, assert_never

import zmq

from exahpc.broker import status
from exahpc.broker.clock import Clock
from exahpc.broker.entries import Entries
from exahpc.broker.fleet import Fleet
from exahpc.broker.keeper import Keeper, Local, OnCluster
from exahpc.broker.memory import Agent, Memory
from exahpc.broker.policies import Policies
from exahpc.broker.publisher import Publisher
from exahpc.broker.seat import Seat
from exahpc.broker.switcher import Switcher, restored
from exahpc.broker.telemetry import Telemetry
from exahpc.broker.values import (
    Changed,
    Coming,
    Decided,
    Down,
    FleetAction,
    Ignored,
    InForce,
    Lapsed,
    Loaded,
    Retired,
    RolloutMoved,
    Superseded,
    Switch,
    Tell,
    Up,
)
from exahpc.deployment.spec import Deployment
from exahpc.errors import DeploymentError, ExahpcError
from exahpc.telemetry.logs import told
from exahpc.wire import link
from exahpc.wire import messages as m
from exahpc.wire.folder import Folder

if TYPE_CHECKING:
    from exahpc.broker.cluster import Cluster  # a local deployment's broker never loads the Slurm room

HOLD_SECONDS = 5.0  # a restarted broker without any memory hears the fleet first
DRAIN_SLACK = 10.0  # seconds on top of a drain before agents that did not say good-bye are given up

EXIT_OVER = 0  # drained, or another broker has taken over: the supervisor ends the head
EXIT_REQUEUE = 75  # walltime: the supervisor hands the head's job back to Slurm
_log = logging.getLogger("exahpc.broker")


class Broker:
    """One epoch of control. `run` returns the process's exit code."""

    def __init__(self, folder: Folder, deployment: Deployment, host: str, cluster: Cluster | None) -> None:
        """host: the address to listen on; cluster: None with the local launcher."""
        self._folder, self._deployment, self._host = folder, deployment, host
        self._cluster = cluster
        self._now = Clock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._entries = Entries()
        self._draining = False

    # --- life ------------------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Raises LinkError or OSError when it cannot start."""
        loop = asyncio.get_running_loop()
        self._end: asyncio.Future[int] = loop.create_future()
        for number, code in ((signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGINT, 128 + signal.SIGINT)):
            loop.add_signal_handler(number, self._stop, code, f"signal {number.name}")
        loop.add_signal_handler(signal.SIGUSR1, self._warned)
        if os.environ.get("EXAHPC_WARNED"):  # the warning came while no broker lived
            self._warned()
        link.require_descriptors(1024 + 4 * sum(pool.tasks for pool in self._deployment.pool))
        if self._end.done():
            return self._end.result()
        seat = Seat(self._folder, self._now, self._end)
        if not await seat.claim():
            return self._end.result()
        self._journal = seat.journal
        self._take_over(seat)
        context = link.context()
        self._listen(context, seat)
        from exahpc.broker.batches import Batches  # half of all imports: peers reconnect meanwhile

        self._batches = Batches(self._folder.path, self._fleet.epoch, self._policies.account.spent)
        self._spawn(self._tick())
        self._spawn(seat.watch(lambda why: self._stop(EXIT_OVER, why)))
        self._spawn(self._keeper.watch())
        try:
            return await self._end
        finally:
            for task in self._tasks:
                task.cancel()
            self._server.close()
            self._batches.close()
            self._telemetry.close(self._now())
            self._journal.close()
            context.destroy(linger=0)

    def _take_over(self, seat: Seat) -> None:
        memory, epoch, now = seat.memory, seat.epoch, self._now()
        known = memory.carried(), memory.replaced, memory.successors()
        self._fleet = Fleet(self._deployment, epoch, now, *known, moved=seat.moved)
        self._policies = Policies(
            self._deployment, self._fleet, now, restored(self._folder, self._deployment, memory), memory.spent
        )
        self._switcher = Switcher(
            self._folder, self._deployment, self._journal, epoch, self._tell_agent, self._now
        )
        keeper = self._keeper = self._made_keeper(memory)
        if keeper.recovery is not None:
            self._policies.said = keeper.recovery.said
        self._telemetry = Telemetry(
            self._folder,
            self._deployment,
            self._fleet,
            self._policies,
            self._entries,
            lambda: keeper.leaves,
            now,
        )
        blind = seat.before is not None and not memory.agents
        self._publisher = Publisher(self._fleet, self._entries, self._tell, HOLD_SECONDS if blind else 0.0)
        self._act(self._policies.begin(now, fresh=not memory.agents))

    def _made_keeper(self, memory: Memory) -> Keeper:
        if self._cluster is None:
            return Local(self._folder, self._deployment, self._fleet)
        hands = (self._fleet, self._journal, self._now, self._spawn)
        return OnCluster(self._cluster, self._deployment, memory, *hands)

    def _listen(self, context: zmq.Context[zmq.Socket[bytes]], seat: Seat) -> None:
        """Bind, where possible at the address that peers knock at already, and say where we are."""
        self._server = link.Server(
            context,
            self._folder.fleet_key(),
            self._host,
            m.ToBroker,
            self._on_message,
            on_garbage=lambda peer, why: _log.warning("a message that is none was dropped: %s", why),
            port=seat.port,
        )
        seat.publish(self._server.address)
        _log.info(
            "epoch %d at %s; %d of %d agents were here before",
            seat.epoch,
            self._server.address,
            self._fleet.expected,
            sum(pool.tasks for pool in self._deployment.pool),
        )

    def _warned(self) -> None:
        """Walltime or preemption is near. A head that shares a task ends with its agent, which is draining now."""
        if self._deployment.launcher.kind == "slurm" and self._deployment.head.placement == "job":
            self._stop(EXIT_REQUEUE, "Slurm's warning before the end")

    def _stop(self, code: int, why: str) -> None:
        if not self._end.done():
            _log.info("ending with code %d: %s", code, why)
            self._end.set_result(code)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("a task of the broker failed", exc_info=task.exception())
            self._stop(1, "a defect; the supervisor restarts the broker")

    # --- messages --------------------------------------------------------------------------------------------

    def _on_message(self, peer: bytes, message: Any) -> None:
        try:
            self._handle(peer, message)
        except Exception:  # one peer's message must not stop the others'
            _log.exception("%s could not be handled", type(message).__name__)

    def _handle(self, peer: bytes, message: m.ToBroker) -> None:
        now = self._now()
        match message:
            case m.AgentHello():
                self._act(self._fleet.hello(peer, message, now))
            case m.AgentBeat():
                self._act(self._fleet.beat(peer, message, now))
                if message.replicas and (key := self._fleet.key_of(peer)) is not None:
                    self._act(self._policies.heard(key, message.replicas, now))
                    self._act(self._keeper.heard(key, message.replicas))
            case m.AgentGone():
                self._act(self._fleet.gone(peer, message, now))
            case m.LeaseWanted():
                key = self._agent_on(peer, now)
                if key is not None and not self._draining:
                    self._send_all(peer, self._batches.want(key, message.rows, self._fleet.epoch, now))
            case m.LeaseProgress():
                key = self._agent_on(peer, now) or self._fleet.reporter_of(peer)
                if key is not None:
                    self._send_all(peer, self._batches.progress(key, message, now))
            case m.EntryHello():
                for replaced in self._entries.hello(peer, message, now):
                    self._policies.entry_left(replaced)
                self._server.send(peer, m.Welcome(self._fleet.epoch, self._deployment.recovery.beat_seconds))
                self._publisher.greet(peer)
            case m.EntryBeat():
                self._entries.beat(peer, message, now)
                self._policies.entry(peer, message, now)
            case m.AgentRollup():
                if (key := self._fleet.key_of(peer)) is not None:
                    self._telemetry.agent(key, message, now)
            case m.EntryRollup():
                self._telemetry.entry(message, now)
            case m.FiguresQuery():
                self._server.send(peer, self._telemetry.answer(message, self._batches.status(), now))
            case m.MapQuery():
                self._server.send(peer, self._telemetry.map())
            case m.ReplicaQuery():
                self._server.send(peer, self._telemetry.story(message, self._keeper.recovery, now))
            case m.StatusQuery():
                self._server.send(peer, self._status(now))
            case m.BatchOpen() if self._draining:
                self._server.send(peer, m.Refused("the deployment is being taken down"))
            case m.BatchOpen() | m.BatchQuery() | m.BatchCancel():
                self._server.send(peer, self._batches.handle_client(message))
            case m.DrainAll():
                self._server.send(peer, m.Accepted())
                self._drain(message.seconds, now)
            case m.RolloutStart() | m.RolloutCommand() | m.RolloutQuery():
                self._spawn(self._rollout(peer, message))
            case _:
                assert_never(message)

    async def _rollout(self, peer: bytes, message: m.RolloutStart | m.RolloutCommand | m.RolloutQuery) -> None:
        rollout, tasks = self._policies.rollout, self._policies.tasks
        try:
            if self._draining:
                raise DeploymentError("the deployment is taken down")
            match message:
                case m.RolloutStart():
                    gates = await self._switcher.gates(message.version)
                    self._act(rollout.start(message.version, gates, tasks(), self._now()))
                case m.RolloutCommand():
                    self._act(rollout.command(message, self._now()))
        except (ExahpcError, OSError) as error:
            self._server.send(peer, m.Refused(str(error)))
        else:
            self._server.send(peer, rollout.status(tasks(), self._now()))

    def _agent_on(self, peer: bytes, now: float) -> str | None:
        """The agent on this connection; one that had been given up is heard again by this."""
        key = self._fleet.key_of(peer)
        if key is None:
            self._act(self._fleet.beat(peer, m.AgentBeat(0, []), now))
        return key or self._fleet.key_of(peer)

    def _tell(self, peer: bytes, message: m.Message) -> bool:
        return self._server.send(peer, message)

    def _tell_agent(self, key: str, message: m.SwitchVersion) -> None:
        self._act(self._fleet.order(key, message))

    def _send_all(self, peer: bytes, messages: Iterable[m.Message]) -> None:
        for message in messages:
            self._server.send(peer, message)

    def _act(self, actions: Iterable[FleetAction]) -> None:
        now = self._now()
        for action in actions:
            match action:
                case Tell():
                    self._server.send(action.peer, action.message)
                case Up():
                    view = action.view
                    text = "agent %s of incarnation %d is up on %s"
                    _log.info(text, view.key, view.incarnation, view.node, extra=told(agent=view.key))
                    self._keeper.up(view)
                    self._act(self._policies.up(view, now))
                    revoked = self._batches.hello(view.key, list(action.leases), now)
                    self._send_all(action.peer, revoked)
                case Down():
                    _log.warning("agent %s is away: %s", action.key, action.why, extra=told(agent=action.key))
                    self._batches.agent_lost(action.key, now, orderly=self._fleet.leaving(action.key))
                    self._policies.down(action.key, now)
                case Coming():
                    view = action.view
                    text = "agent %s: its successor of incarnation %d is up on %s"
                    _log.info(text, view.key, view.incarnation, view.node, extra=told(agent=view.key))
                    self._keeper.coming(view)
                case Lapsed():
                    _log.warning("agent %s: its successor is gone: %s", action.view.key, action.why)
                    self._keeper.lapsed(action.view)
                case Loaded():
                    _log.info("agent %s is ready after %.0f s", action.view.key, action.seconds)
                    self._keeper.loaded(action.view, action.seconds)
                case Retired():
                    _log.info("agent %s: job %s was succeeded", action.key, action.job)
                    self._keeper.retired(action.key, action.job)
                case Changed():
                    self._journal.append(Agent.of(action.view, action.route, now))
                case Ignored():
                    _log.warning("%s", action.why)
                case Decided():
                    _log.warning("%s", action.what)
                case RolloutMoved() | Switch() | InForce():
                    self._spawn(self._switcher.perform(action))
                case Superseded():
                    self._stop(EXIT_OVER, f"{action.why}, this is epoch {self._fleet.epoch}")
                case _:
                    assert_never(action)
        self._publisher.soon()

    # --- time ------------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            for _ in range(5):
                await asyncio.sleep(0.2)
                now = self._now()
                self._batches.account = self._policies.account.so_far(self._fleet.nodes, now)
                for key, revoke in self._batches.tick(now):
                    peer = self._fleet.peer_of(key)
                    if peer is not None:
                        self._server.send(peer, revoke)
            now = self._now()
            self._act(self._fleet.tick(now))
            self._policies.work = self._batches.work()
            self._act(self._policies.tick(now))
            if self._policies.over and not self._draining:
                _log.warning("there was nothing to do for a while: the deployment ends (budget.release_idle)")
                self._drain(0.0, now)
            self._keeper.tick(frozen=self._policies.account.exhausted)
            if (spent := self._policies.account.tick(self._fleet.nodes, now)) is not None:
                self._journal.append(spent)
            self._entries.tick(now)
            self._telemetry.tick(now)

    # --- status and the end ----------------------------------------------------------------------------------

    def _status(self, now: float) -> m.StatusReply:
        notes: list[str] = []
        if self._draining:
            notes.append("the deployment is draining")
        if self._fleet.expected:
            notes.append(f"the broker was restarted: {self._fleet.expected} agents are not heard yet")
        notes += self._keeper.notes(now) + self._policies.notes(now) + self._telemetry.notes()
        return status.reply(
            self._deployment,
            self._fleet,
            self._keeper.recovery,
            self._entries.rows(),
            self._batches.status(),
            notes,
            self._policies.ill,
            now,
            self._policies.account.spent,
            draining=self._draining,
        )

    def _drain(self, seconds: float, now: float) -> None:
        first = not self._draining
        self._draining = self._policies.draining = True
        self._keeper.drain()
        self._act(self._fleet.drain(seconds, "the deployment is taken down", now))
        if first:
            self._spawn(self._end_fleet(now + seconds + DRAIN_SLACK))

    async def _end_fleet(self, until: float) -> None:
        """Wait for the agents' good-byes, cancel what is left in Slurm, and end the head."""
        started = self._now()
        while self._now() < until:
            coming = self._fleet.unheard and self._now() < started + self._keeper.coming_seconds
            if not (self._fleet.alive or self._fleet.expected or coming):
                break
            await asyncio.sleep(0.1)
        await self._keeper.finish()
        (self._folder.path / "head.json").unlink(missing_ok=True)
        self._stop(EXIT_OVER, "the deployment is drained")


def run(make: Callable[[], Broker]) -> int:
    """Run one broker to its end on uvloop; returns its exit code."""
    import uvloop

    async def main() -> int:
        return await make().run()

    return int(uvloop.run(main()))
