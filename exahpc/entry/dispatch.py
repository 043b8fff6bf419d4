"""The loop around the desk: links to the broker and to every agent, and the actions performed."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import assert_never

import zmq

from exahpc.deployment.spec import Deployment
from exahpc.entry.actions import Action, Comfort, Connect, Disconnect, Finish, Refuse, Tell
from exahpc.entry.desk import Desk
from exahpc.entry.figures import Asked
from exahpc.entry.fleet import Agent, AgentKey
from exahpc.entry.ledger import Record
from exahpc.entry.moves import named
from exahpc.entry.outbox import Outbox
from exahpc.errors import RequestError
from exahpc.wire import link, local
from exahpc.wire import messages as m

log = logging.getLogger(__name__)

_TICK = 0.25
_BEAT = 2.0
_SLICE = 128  # clients that are written to in one turn of the loop, about 2 ms
_SPREAD = 0.2  # seconds over which first connects to agents are spread: CURVE handshakes cost both sides


class Dispatch:
    """Owns the desk and the links. Every method runs in the loop and never waits."""

    def __init__(
        self,
        deployment: Deployment,
        ctx: zmq.Context[zmq.Socket[bytes]],
        key: link.FleetKey,
        locate_broker: Callable[[], str | None],
        *,
        index: int,
        url: str,
        node: str = "",
        door: Callable[[Agent], Path] | None = None,
        draw: Callable[[int], int] = lambda n: int(random.random() * n),  # several times as fast as randrange
    ) -> None:
        """door: where an agent would be met if it were on this node (`folder.door`)."""
        self.desk = Desk(deployment, draw, node)
        self._ctx, self._key = ctx, key
        self._index, self._url, self._node, self._door = index, url, node, door
        self._loop = asyncio.get_running_loop()
        self._links: dict[AgentKey, link.Client | local.Client] = {}
        self._outbox = Outbox(self._tell, self._unsent)
        self._release: asyncio.TimerHandle | None = None
        self._next_beat = 0.0
        self._touched: deque[Record] = deque()
        self._broker = link.Client(
            ctx,
            key,
            locate_broker,
            m.BrokerToEntry,
            self._from_broker,
            on_up=self._hello,
            on_lost=self._broker_lost,
        )
        self.figures = Asked[m.FleetFigures](self._broker.send)
        self.map = Asked[m.FleetMap](self._broker.send)
        self.replica = Asked[m.ReplicaStory](self._broker.send)
        self._tick_timer = self._loop.call_later(_TICK, self._tick)

    # --- clients ---

    def open(self, record: Record) -> None:
        """Start a request. Raises RequestError (429) when too many wait."""
        self.perform(self.desk.open(record, self._loop.time()))

    def left(self, record: Record) -> None:
        """Its client went away."""
        self.perform(self.desk.cancel(record, "the client left", self._loop.time()))

    def abandon_all(self, error: RequestError) -> None:
        """End every request with an error from our side."""
        for record in list(self.desk.ledger.records.values()):
            self.perform(self.desk.abandon(record, error, self._loop.time()))

    # --- messages ---

    def _from_agent(self, agent: Agent, message: m.AgentToEntry) -> None:
        try:
            self._handle(agent, message)
        except Exception:  # one bad message must not stop the link's pump
            log.exception("a message of agent %s failed", agent.name)

    def _handle(self, agent: Agent, message: m.AgentToEntry) -> None:
        now, desk = self._loop.time(), self.desk
        match message:
            case m.Answers():
                for one in message.answers:
                    self._from_agent(agent, one)
            case m.Frames():
                touched, actions = desk.frames(agent, message.frames, now)
                if touched and not self._touched:
                    self._loop.call_soon(self._write)
                self._touched += touched
                if actions:
                    self.perform(actions + desk.pump(now))
            case m.Done():
                self.perform(desk.done(agent, message, now))
            case m.Failed():
                if message.status >= 500 and not message.retry:  # one that is taken back has a line of its own
                    log.warning("request %s on %s: %s", message.request, agent.name, message.message)
                self.perform(desk.failed(agent, message, now))
            case m.Busy():
                self.perform(desk.busy(agent, message, now))
            case m.Room():
                self.perform(desk.room(agent, message, now))
            case _:
                assert_never(message)

    def _write(self) -> None:
        """Pass on what came: a client whose stream moved several times gets one piece. In slices, because
        new clients are taken once a turn of the loop, and everybody else waits for its end, too."""
        for _ in range(min(_SLICE, len(self._touched))):
            record = self._touched.popleft()
            try:
                if record.out and record.phase != "ended" and not record.client.write(record.take()):
                    self._cut(record)
            except Exception:  # one client must not stop the others
                log.exception("request %s: its client cannot be written to", record.id)
        if self._touched:
            self._loop.call_soon(self._write)

    def _cut(self, record: Record) -> None:
        log.warning("request %s is cut off: its client does not read", record.id)
        self.perform(self.desk.cancel(record, "slow reader", self._loop.time()))
        record.client.cut("the client reads too slowly (limits.stream_buffer_bytes)")

    def _from_broker(self, message: m.BrokerToEntry) -> None:
        match message:
            case m.Welcome():
                log.info("broker of epoch %d", message.epoch)
            case m.FleetFigures():
                self.figures.told(message.query, message)
            case m.FleetMap():
                self.map.told(m.MapQuery(), message)
            case m.ReplicaStory():
                self.replica.told(message.query, message)
            case m.Refused():
                log.warning("the broker refuses: %s", message.reason)
            case m.FleetTable():
                try:
                    self.perform(self.desk.table(message, self._loop.time()))
                except Exception:
                    log.exception("a fleet table failed")
            case _:
                assert_never(message)

    def _hello(self) -> None:
        self._broker.send(m.EntryHello(self._index, os.getpid(), self._url, self._node))

    def _broker_lost(self) -> None:
        log.warning("the broker is gone; the last fleet table stays")

    # --- links ---

    def _tell(self, agent: Agent, message: m.EntryToAgent) -> bool:
        client = self._links.get(agent.key)
        return client is not None and client.send(message)

    def _unsent(self, agent: Agent, submits: list[m.Submit]) -> None:
        """These did not leave: decide again."""
        for submit in submits:
            self.perform(self.desk.unsent(agent, submit, self._loop.time()))

    def _connect(self, agent: Agent) -> None:
        old = self._links.pop(agent.key, None)
        if old is not None:
            old.close()
        heard, up, lost = (partial(f, agent) for f in (self._from_agent, self._link_up, self._link_lost))
        door = None if self._door is None else self._door(agent)
        if door is not None and door.exists():
            self._links[agent.key] = local.Client(
                door,
                m.AgentToEntry,
                heard,
                on_up=up,
                on_lost=lost,
                asks=True,
                on_refused=partial(self._dial, agent),
            )
            return
        self._dial(agent)

    def _dial(self, agent: Agent) -> None:
        """Go to its address: it is on another node, or nobody is behind its door (any more)."""
        old = self._links.pop(agent.key, None)
        if old is not None:
            old.close()
        heard, up, lost = (partial(f, agent) for f in (self._from_agent, self._link_up, self._link_lost))
        self._links[agent.key] = link.Client(
            self._ctx,
            self._key,
            lambda: agent.address,
            m.AgentToEntry,
            heard,
            on_up=up,
            on_lost=lost,
            first_wait=_SPREAD if len(self._links) > 16 else 0.0,
        )

    def _link_up(self, agent: Agent) -> None:
        log.info("agent %s is connected", agent.name)
        self.perform(self.desk.link_up(agent, self._loop.time()))

    def _link_lost(self, agent: Agent) -> None:
        self._outbox.forget(agent)
        before = self.desk.counts.resent
        self.perform(self.desk.link_lost(agent, self._loop.time()))
        log.warning(
            "the link to agent %s is lost, %d requests are sent again",
            agent.name,
            self.desk.counts.resent - before,
        )

    # --- actions and time ---

    def perform(self, actions: Iterable[Action]) -> None:
        """Do what the desk decided."""
        for action in actions:
            match action:
                case Tell(agent=agent, message=message):
                    self._outbox.put(agent, message)
                case Comfort(record=record):
                    record.client.comfort()
                case Finish(record=record, data=data):
                    record.client.finish(record.take() + data if record.out else data)
                case Refuse(record=record, error=error):
                    if record.told or error.status >= 500:
                        text = "request %s failed: %s"
                        log.warning(text, record.id, error.message, extra=named(record, status=error.status))
                    if record.out:
                        record.client.write(record.take())
                    record.client.refuse(error)
                case Connect(agent=agent):
                    self._connect(agent)
                case Disconnect(agent=agent):
                    gone = self._links.pop(agent.key, None)
                    if gone is not None:
                        gone.close()
                case _:
                    assert_never(action)
        if self._release is None and self.desk.waiting:
            self._arm()

    def _arm(self) -> None:
        """Wake when the next busy replica may be tried again."""
        when = self.desk.router.next_release()
        if when is not None:
            self._release = self._loop.call_at(when, self._released)

    def _released(self) -> None:
        self._release = None
        self.perform(self.desk.pump(self._loop.time()))

    def _tick(self) -> None:
        self._tick_timer = self._loop.call_later(_TICK, self._tick)
        now = self._loop.time()
        self.perform(self.desk.tick(now))
        if now >= self._next_beat:
            self._next_beat = now + _BEAT
            counts, desk = self.desk.counts, self.desk
            beat = m.EntryBeat(
                desk.in_flight,
                desk.waiting,
                counts.done,
                counts.failed,
                counts.rejected,
                counts.resent,
                desk.outstanding,
                desk.admission.oldest(now),
            )
            if self._broker.send(beat):
                desk.push(self._broker.send, now)

    def close(self) -> None:
        """Close every link."""
        self._tick_timer.cancel()
        if self._release is not None:
            self._release.cancel()
        self._broker.close()
        for client in self._links.values():
            client.close()
        self._links.clear()
