"""A simulated entry: the real desk (ledger, admission, routing) with links that always carry at once."""

from __future__ import annotations

import random
from collections import deque
from typing import TYPE_CHECKING

from exahpc.entry.actions import Action, Connect, Disconnect, Finish, Refuse, Tell
from exahpc.entry.desk import Desk
from exahpc.entry.fleet import Agent, AgentKey
from exahpc.entry.ledger import Record
from exahpc.errors import RequestError
from exahpc.lab.simulate.arrivals import Arrival
from exahpc.lab.simulate.outcomes import Client, Ending
from exahpc.lab.simulate.timeline import Timeline
from exahpc.wire.messages import Busy, Done, EntryBeat, Failed, FleetTable, Frame, Load, Submit

if TYPE_CHECKING:
    from exahpc.lab.simulate.host import Host
    from exahpc.lab.simulate.world import World

TICK = 0.25
BEAT = 2.0
RECONNECT = 1.0


class Gateway:
    """One entry. Requests wait, are sent, sent again and refused as its desk decides."""

    def __init__(self, world: World, number: int) -> None:
        draw = random.Random(world.scenario.seed + 1000 + number).random
        self.number = number
        self.peer = b"entry %d" % number
        self.desk = Desk(world.deployment, lambda n: int(draw() * n))
        self._world, self._outcomes = world, world.outcomes
        self._timeline: Timeline = world.timeline
        self._hosts: dict[AgentKey, Host] = {}
        self._todo: deque[Action] = deque()
        self._busy = False
        self._armed = False
        self._opened = 0
        share = number / world.entries  # not all in the same moment
        world.timeline.every(TICK, self._tick, TICK * share)
        world.timeline.every(BEAT, self._beat, BEAT * share)

    # --- clients ---------------------------------------------------------------------------------------------

    def open(self, arrival: Arrival) -> None:
        """A client asks."""
        now = self._timeline.now
        self._opened += 1
        _, prompt, new, most, stream = arrival
        client = Client(now, prompt, new)
        name = f"{self.number}-{self._opened}"
        record = Record(
            name,
            "completion",
            b"",
            stream=stream,
            seed=0,
            created=0,
            choices=1,
            prompt=prompt,
            new=most,
            client=client,
        )
        self._outcomes.opened += 1
        try:
            actions = self.desk.open(record, now)
        except RequestError:
            self._outcomes.end(client, "refused", 0, now)
            return
        self.perform(actions)

    def close(self) -> None:
        """The simulation is over: what is still open has no ending."""
        for record in self.desk.ledger.records.values():
            self._outcomes.end(record.client, "open", record.deaths, self._timeline.now)

    # --- what agents say -------------------------------------------------------------------------------------

    def frame(self, agent: Agent, frame: Frame) -> None:
        now = self._timeline.now
        touched, actions = self.desk.frames(agent, [frame], now)
        for record in touched:
            record.out.clear()
            client = record.client
            if client.first < 0:
                client.first = now
        if actions:
            self.perform(actions + self.desk.pump(now))

    def done(self, agent: Agent, message: Done) -> None:
        self.perform(self.desk.done(agent, message, self._timeline.now))

    def failed(self, agent: Agent, message: Failed) -> None:
        self.perform(self.desk.failed(agent, message, self._timeline.now))

    def busy(self, agent: Agent, message: Busy) -> None:
        self.perform(self.desk.busy(agent, message, self._timeline.now))

    def room(self, agent: Agent, loads: list[Load]) -> None:
        router = self.desk.router
        router.room(agent, loads, self._timeline.now)
        if self.desk.waiting:
            self.perform(self.desk.pump(self._timeline.now))

    def lost(self, agent: Agent) -> None:
        """The link to this agent broke; while the table names it, it is tried again."""
        if agent.key in self._hosts and agent.up:
            self.perform(self.desk.link_lost(agent, self._timeline.now))
            self._timeline.after(RECONNECT, self._connect, agent)

    # --- what the broker says --------------------------------------------------------------------------------

    def table(self, table: FleetTable) -> None:
        self.perform(self.desk.table(table, self._timeline.now))

    # --- actions and time ------------------------------------------------------------------------------------

    def perform(self, actions: list[Action]) -> None:
        """In order; what an action causes is done behind those that were decided before."""
        todo = self._todo
        todo.extend(actions)
        if self._busy:
            return
        self._busy = True
        while todo:
            action = todo.popleft()
            if type(action) is Tell:
                self._tell(action)
            elif type(action) is Finish:
                record = action.record
                self._outcomes.end(record.client, "done", record.deaths, self._timeline.now)
            else:
                self._rare(action)
        self._busy = False
        if not self._armed and self.desk.waiting:
            self._arm()

    def _tell(self, action: Tell) -> None:
        agent, message = action.agent, action.message
        host = self._hosts.get(agent.key)
        if host is None or not host.alive:
            return  # the link will break, and then it is decided anew
        if type(message) is Submit:
            host.relay.submit(self, agent, message, self.desk.ledger.records[message.request].client)
        else:
            host.relay.cancel(message.request)

    def _rare(self, action: Action) -> None:
        match action:
            case Refuse(record=record, error=error):
                self._refused(record, error)
            case Connect(agent=agent):
                self._hosts.pop(agent.key, None)
                self._timeline.after(0.0, self._connect, agent)
            case Disconnect(agent=agent):
                host = self._hosts.pop(agent.key, None)
                if host is not None:
                    host.links.pop(self, None)
            case _:
                pass  # a sign of life for the client

    def _refused(self, record: Record, error: RequestError) -> None:
        ending: Ending = "no room" if error.status == 503 else "refused" if error.status < 500 else "failed"
        self._outcomes.end(record.client, ending, record.deaths, self._timeline.now)

    def _connect(self, agent: Agent) -> None:
        if agent.up or self.desk.router.agents.get(agent.key) is not agent:
            return
        host = self._world.hosts.get(agent.address)
        if host is None or not host.alive:
            self._timeline.after(RECONNECT, self._connect, agent)
            return
        self._hosts[agent.key] = host
        host.links[self] = agent
        self.perform(self.desk.link_up(agent, self._timeline.now))

    def _arm(self) -> None:
        """Wake when the next busy replica may be tried again."""
        when = self.desk.router.next_release()
        if when is not None:
            self._armed = True
            self._timeline.at(when, self._released)

    def _released(self) -> None:
        self._armed = False
        self.perform(self.desk.pump(self._timeline.now))

    def _tick(self) -> None:
        self.perform(self.desk.tick(self._timeline.now))

    def _beat(self) -> None:
        desk, counts = self.desk, self.desk.counts
        beat = EntryBeat(
            desk.in_flight,
            desk.waiting,
            counts.done,
            counts.failed,
            counts.rejected,
            counts.resent,
            desk.outstanding,
            desk.admission.oldest(self._timeline.now),
        )
        self._world.head.entry(self.peer, beat)
