"""The fleet: who is alive, which replicas take traffic, and the table that says so. Pure: (event, now) -> actions.

An agent is known by "<pool>/<task>". Its incarnation grows with each process; only the newest one's current
connection is listened to. The cost of a quiet beat is one move in an ordered dict; nothing here walks the fleet
except `table` (when it changed) and `snapshot` (when somebody asks).

A restarted broker begins with what its predecessor had journalled (`carried`): those agents are *expected*. Their
routes stay in the table until they are heard or `carry_seconds` are over, so entries never lose a route because a
fresh broker has heard only half of the fleet.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from exahpc.broker.member import Member
from exahpc.broker.values import (
    AgentPhase,
    AgentView,
    Changed,
    Down,
    FleetAction,
    Ignored,
    Superseded,
    Tell,
    Up,
)
from exahpc.deployment.spec import Deployment
from exahpc.wire.messages import (
    AgentBeat,
    AgentGone,
    AgentHello,
    AgentRoute,
    DrainAgent,
    FleetTable,
    ReplicaState,
    Welcome,
)

MISSED_BEATS = 5
CARRY_SECONDS = 20.0  # a peer that hangs in a connect to the old head's dead node needs up to 14 s


class Fleet:
    """One broker's knowledge of all agents. Times in seconds of one monotonic clock."""

    def __init__(
        self,
        deployment: Deployment,
        epoch: int,
        now: float,
        carried: Iterable[tuple[AgentView, AgentRoute | None]] = (),
    ) -> None:
        """carried: what the predecessor last knew; agents that this deployment does not want are left out."""
        self.epoch = epoch
        self._beat = deployment.recovery.beat_seconds
        self._agents: dict[str, Member] = {}
        for pool in deployment.pool:
            for task in range(pool.tasks):
                key = f"{pool.name}/{task}"
                self._agents[key] = Member(key, pool, task, since=now)
        self._absent: dict[str, None] = dict.fromkeys(self._agents)  # not alive; a dict for its order
        self._expected: set[str] = set()
        self._heard: OrderedDict[str, None] = OrderedDict()  # alive agents, the longest silent first
        self._peers: dict[bytes, Member] = {}
        self._carry_until = now + max(CARRY_SECONDS, MISSED_BEATS * self._beat)
        self._deaf_until = now
        self._last_tick = now
        self._drain: tuple[float, str] | None = None
        self._version = 0
        self._published: dict[str, AgentRoute] | None = None
        self._dirty = True
        for view, route in carried:
            self._carry(view, route)

    def _carry(self, view: AgentView, route: AgentRoute | None) -> None:
        agent = self._agents.get(view.key)
        if agent is None:
            return
        agent.incarnation, agent.node, agent.job = view.incarnation, view.node, view.job
        if view.phase == "alive":
            agent.phase, agent.route = "expected", route
            self._expected.add(agent.key)
        else:
            agent.phase, agent.reason, agent.handed_back = view.phase, view.reason, view.handed_back

    # --- events ----------------------------------------------------------------------------------------------

    def hello(self, peer: bytes, message: AgentHello, now: float) -> list[FleetAction]:
        key = f"{message.pool}/{message.task}"
        if message.epoch > self.epoch:
            return [Superseded(message.epoch, f"agent {key} obeys the broker of epoch {message.epoch}")]
        agent = self._agents.get(key)
        if agent is None:
            return [Ignored(f"hello of {key}: the deployment has no such task")]
        if message.incarnation < agent.incarnation:
            why = f"incarnation {message.incarnation} of {key} was replaced by {agent.incarnation}"
            if message.node == agent.node:  # its steps may have been adopted by the newer agent beside it
                return [Ignored(why)]
            return [Ignored(why), Tell(peer, DrainAgent(self.epoch, 0.0, why))]
        if message.incarnation == agent.incarnation and agent.phase == "gone":
            return [Ignored(f"hello of {key} after its good-bye")]
        fresh = message.incarnation > agent.incarnation
        actions: list[FleetAction] = []
        if fresh and agent.phase in ("alive", "expected"):
            actions.append(Down(key, f"replaced by incarnation {message.incarnation}"))
        self._forget_peer(agent)
        self._peers[peer], agent.peer = agent, peer
        agent.incarnation, agent.node, agent.address = message.incarnation, message.node, message.address
        agent.job, agent.restarts = message.job or agent.job, message.restarts
        agent.version, agent.until = message.version, message.until
        agent.reason, agent.handed_back = "", False
        agent.replicas = {}
        agent.absorb(message.replicas)
        self._enter(agent, "alive", now)
        self._listen(agent, now)
        actions += [
            Tell(peer, Welcome(self.epoch, self._beat)),
            Up(agent.view(), peer, tuple(message.leases), fresh),
        ]
        self._route(agent)
        actions.append(Changed(agent.view(), agent.route))
        if self._drain is not None:
            until, reason = self._drain
            actions.append(Tell(peer, DrainAgent(self.epoch, max(0.0, until - now), reason)))
        return actions

    def beat(self, peer: bytes, message: AgentBeat, now: float) -> list[FleetAction]:
        agent = self._peers.get(peer)
        if agent is None:
            return []
        self._listen(agent, now)
        changed = agent.absorb(message.replicas)
        if agent.phase == "lost":  # it was only silent: the same connection, so no beat was missed in between
            self._enter(agent, "alive", now)
            agent.reason = ""
            self._route(agent)
            return [Up(agent.view(), peer, (), False), Changed(agent.view(), agent.route)]
        return self._route(agent) if changed else []

    def gone(self, peer: bytes, message: AgentGone, now: float) -> list[FleetAction]:
        agent = self._peers.get(peer)
        if agent is None:
            return []
        self._forget_peer(agent)
        agent.reason, agent.handed_back = message.reason, message.requeue
        return self._leave(agent, "gone", message.reason, now)

    def tick(self, now: float) -> list[FleetAction]:
        """Call about once a second: declares silent agents lost."""
        actions: list[FleetAction] = []
        silence = MISSED_BEATS * self._beat
        if now - self._last_tick > max(self._beat, 2.0):  # we were stopped: the beats wait in our own socket
            self._deaf_until = now + silence
        self._last_tick = now
        if now >= self._deaf_until:
            while self._heard:
                agent = self._agents[next(iter(self._heard))]
                if now - agent.heard <= silence:
                    break
                actions += self._leave(agent, "lost", f"no beat for {now - agent.heard:.0f} s", now)
        if self._expected and now >= self._carry_until:
            for key in sorted(self._expected):
                actions += self._leave(self._agents[key], "lost", "not heard since the broker's restart", now)
        return actions

    def drain(self, seconds: float, reason: str, now: float) -> list[FleetAction]:
        """End the whole fleet: every agent, also those that say hello later."""
        self._drain = (now + seconds, reason)
        actions: list[FleetAction] = []
        for agent in self._agents.values():
            agent.draining = True
            if agent.phase == "alive" and agent.peer is not None:
                actions.append(Tell(agent.peer, DrainAgent(self.epoch, seconds, reason)))
            actions += self._route(agent)
        return actions

    def weigh(
        self, key: str, slot: int, incarnation: int, weight: float, *, probe: bool = False
    ) -> list[FleetAction]:
        """Lower (or restore) the share of traffic of one replica; weight in 0..1, 0: none. Its next incarnation
        has 1. probe: see `Route`."""
        agent = self._agents[key]
        agent.weights[slot] = (incarnation, weight, probe)
        return self._route(agent)

    # --- what others read ------------------------------------------------------------------------------------

    def table(self) -> FleetTable | None:
        """The table to push, with its version raised, or None when entries already have the same routes."""
        if not self._dirty:
            return None
        self._dirty = False
        routes = {key: agent.route for key, agent in sorted(self._agents.items()) if agent.route is not None}
        if routes == self._published:
            return None
        self._published, self._version = routes, self._version + 1
        return self.current()

    def current(self) -> FleetTable:
        """The table as it was last pushed: for an entry that says hello."""
        return FleetTable(self.epoch, self._version, list((self._published or {}).values()))

    def key_of(self, peer: bytes) -> str | None:
        """The agent on this connection, when it is the one listened to and not given up."""
        agent = self._peers.get(peer)
        return agent.key if agent is not None and agent.phase == "alive" else None

    def peer_of(self, key: str) -> bytes | None:
        agent = self._agents.get(key)
        return agent.peer if agent is not None and agent.phase == "alive" else None

    @property
    def dirty(self) -> bool:
        """A table may have to be pushed."""
        return self._dirty

    @property
    def alive(self) -> int:
        return len(self._heard)

    @property
    def expected(self) -> int:
        return len(self._expected)

    @property
    def unheard(self) -> int:
        return sum(self._agents[key].phase == "unheard" for key in self._absent)

    def absent(self) -> Iterator[AgentView]:
        """Agents that are not alive; costs nothing when all are."""
        return (self._agents[key].view() for key in self._absent)

    def snapshot(self) -> Iterator[tuple[AgentView, int, float, list[ReplicaState]]]:
        """(agent, its restarts, when it was last heard, its replicas) of every wanted task."""
        for agent in self._agents.values():
            replicas = [r for _, r in sorted(agent.replicas.items())] if agent.phase == "alive" else []
            yield agent.view(), agent.restarts, agent.heard, replicas

    # --- inner -----------------------------------------------------------------------------------------------

    def _listen(self, agent: Member, now: float) -> None:
        agent.heard = now
        self._heard[agent.key] = None
        self._heard.move_to_end(agent.key)

    def _forget_peer(self, agent: Member) -> None:
        if agent.peer is not None:
            self._peers.pop(agent.peer, None)
            agent.peer = None

    def _enter(self, agent: Member, phase: AgentPhase, now: float) -> None:
        if agent.phase != phase:
            agent.phase, agent.since = phase, now
        self._expected.discard(agent.key)
        if phase == "alive":
            self._absent.pop(agent.key, None)
        else:
            self._absent[agent.key] = None
            self._heard.pop(agent.key, None)

    def _leave(self, agent: Member, phase: AgentPhase, why: str, now: float) -> list[FleetAction]:
        self._enter(agent, phase, now)
        agent.reason = why
        agent.route = agent.earned_route()
        self._dirty = True
        return [Down(agent.key, why), Changed(agent.view(), None)]

    def _route(self, agent: Member) -> list[FleetAction]:
        if agent.phase == "expected" and not agent.draining:
            return []  # keeps what it had
        route = agent.earned_route()
        if route == agent.route:
            return []
        agent.route, self._dirty = route, True
        return [Changed(agent.view(), route)]
