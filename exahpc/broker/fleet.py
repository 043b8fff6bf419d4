"""The fleet: who is alive, which replicas take traffic, and the table that says so. Pure: (event, now) -> actions.

An agent is known by "<pool>/<task>". Its incarnation grows with each process. One that was restarted in its job,
or whose job was requeued, replaces the one before it. One in *another* job while the current agent lives is its
successor: it is held as *next* until it can serve as much as the current one, or that one ends; then the task is
handed over, and the old agent drains.

The cost of a quiet beat is one move in an ordered dict; nothing here walks the fleet except `table` (when it
changed) and `snapshot` (when somebody asks).

A restarted broker begins with what its predecessor had journalled (`carried`): those agents are *expected*. Their
routes stay in the table until they are heard or `carry_seconds` are over, so entries never lose a route because a
fresh broker has heard only half of the fleet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from exahpc.broker.books import Books
from exahpc.broker.drawing import Drawing
from exahpc.broker.member import Member
from exahpc.broker.roster import Roster
from exahpc.broker.values import (
    AgentPhase,
    AgentView,
    Changed,
    Coming,
    Down,
    FleetAction,
    Ignored,
    Lapsed,
    Loaded,
    Retired,
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
    BrokerToAgent,
    DrainAgent,
    FleetTable,
    Share,
    Welcome,
)

MISSED_BEATS = 4  # with a beat of 2 s, a dead node is found in less than 10 s
CARRY_SECONDS = 20.0  # a peer that hangs in a connect to the old head's dead node needs up to 14 s ...
STAYED_SECONDS = 8.0  # ... one whose head only started again knows it at once


class Fleet(Books):
    """One broker's knowledge of all agents. Times in seconds of one monotonic clock."""

    def __init__(
        self,
        deployment: Deployment,
        epoch: int,
        now: float,
        carried: Iterable[tuple[AgentView, AgentRoute | None]] = (),
        retired: Iterable[str] = (),
        heirs: Mapping[str, str] = MappingProxyType({}),
        *,
        moved: bool = True,
    ) -> None:
        """carried: what the predecessor last knew; agents that this deployment does not want are left out.
        retired: jobs whose task lives in another one; heirs: task -> job of the successor that is under way;
        moved: the predecessor was on another host."""
        self.epoch = epoch
        self._beat = deployment.recovery.beat_seconds
        self._drain_seconds = deployment.walltime.drain_seconds
        super().__init__(Roster(deployment, now))
        self._retired, self._heirs = set(retired), dict(heirs)
        self._carry_until = now + max(CARRY_SECONDS if moved else STAYED_SECONDS, MISSED_BEATS * self._beat)
        self._deaf_until = now
        self._last_tick = now
        self._drain: tuple[float, str] | None = None
        self._drawing = Drawing(epoch, self._roster.routes)
        for view, route in carried:
            self._carry(view, route)

    def _carry(self, view: AgentView, route: AgentRoute | None) -> None:
        agent = self._roster.current.get(view.key)
        if agent is None:
            return
        if view.leaving:
            agent = self._roster.leaving[view.key] = Member(agent.key, agent.pool, agent.task, role="leaving")
        agent.incarnation, agent.node, agent.job = view.incarnation, view.node, view.job
        agent.parked, agent.version, agent.until = view.parked, view.version, view.until
        if view.phase in ("alive", "expected"):
            self._roster.enter(agent, "expected", agent.since)
            agent.route = route
            agent.weights = {
                r.slot: (r.incarnation, r.weight, r.probe)
                for r in (route.replicas if route is not None else ())
                if r.weight < 1
            }
        else:
            agent.phase, agent.reason = view.phase, view.reason
            agent.handed_back, agent.suspect = view.handed_back, view.suspect

    # --- events ----------------------------------------------------------------------------------------------

    def hello(self, peer: bytes, message: AgentHello, now: float) -> list[FleetAction]:
        key = f"{message.pool}/{message.task}"
        if message.epoch > self.epoch:
            return [Superseded(message.epoch, f"agent {key} obeys the broker of epoch {message.epoch}")]
        current = self._roster.current.get(key)
        if current is None:
            return [Ignored(f"hello of {key}: the deployment has no such task")]
        known = next((m for m in self._roster.lives(key) if m.incarnation == message.incarnation), None)
        if known is not None:
            if known.phase == "gone":
                return [Ignored(f"hello of {key} after its good-bye")]
            return self._greet(known, peer, message, now, fresh=False)
        if message.job and message.job in self._retired and message.job != current.job:
            return self._send_away(peer, f"job {message.job} of {key} was succeeded by {current.job}", now)
        before = next((m for m in self._roster.lives(key) if m.job == message.job), current)
        heir = before is current and message.job != current.job and message.job == self._heirs.get(key)
        if message.incarnation < before.incarnation and not heir:  # a current agent may start after its heir did
            why = f"incarnation {message.incarnation} of {key} was replaced by {before.incarnation}"
            if message.node == before.node and message.job == before.job:
                return [Ignored(why)]  # its steps may have been adopted by the newer agent beside it
            return self._send_away(peer, why, now)
        if before is current and self._succeeds(message, current):
            return self._hold(current, peer, message, now)
        return self._greet(before, peer, message, now, fresh=True)

    @staticmethod
    def _succeeds(message: AgentHello, current: Member) -> bool:
        return (
            current.phase in ("alive", "expected") and "" not in (message.job, current.job)
        ) and message.job != current.job

    def _send_away(self, peer: bytes, why: str, now: float) -> list[FleetAction]:
        return [Ignored(why), Tell(peer, DrainAgent(self.epoch, 0.0, why))]

    def _hold(self, current: Member, peer: bytes, message: AgentHello, now: float) -> list[FleetAction]:
        """A successor: let it load beside the current agent."""
        actions: list[FleetAction] = []
        other = self._roster.next.get(current.key)
        if other is not None:
            why = f"incarnation {message.incarnation} has come in its place"
            if other.peer is not None:
                actions.append(Tell(other.peer, DrainAgent(self.epoch, 0.0, why)))
            actions += self._lapse(other, why)
        member = Member(current.key, current.pool, current.task, role="next", parked=current.parked)
        self._roster.next[current.key], self._heirs[current.key] = member, message.job
        return actions + self._greet(member, peer, message, now, fresh=True)

    def _greet(
        self, agent: Member, peer: bytes, message: AgentHello, now: float, *, fresh: bool
    ) -> list[FleetAction]:
        actions: list[FleetAction] = []
        if fresh and agent.role == "current" and agent.phase in ("alive", "expected"):
            actions.append(Down(agent.key, f"replaced by incarnation {message.incarnation}"))
        agent.incarnation, agent.node, agent.address = message.incarnation, message.node, message.address
        agent.job, agent.restarts = message.job or agent.job, message.restarts
        agent.version, agent.until = message.version, message.until or (0.0 if fresh else agent.until)
        agent.sequences = message.sequences
        agent.reason, agent.handed_back, agent.suspect = "", False, False
        if fresh:
            agent.draining = False
        agent.replicas = {}
        agent.absorb(message.replicas)
        agent.came, agent.loaded = now, agent.ready == agent.slots
        self._roster.connect(agent, peer, now)
        self._roster.enter(agent, "alive", now)
        actions.append(Tell(peer, Welcome(self.epoch, self._beat)))
        if agent.role == "current":
            actions.append(Up(agent.view(), peer, tuple(message.leases), fresh))
            self._route(agent)
            actions.append(Changed(agent.view(), agent.route))
        elif agent.role == "next":
            actions.append(Coming(agent.view()))
        else:
            self._route(agent)
        return actions + self._remind(agent, now) + self._settle(agent.key, now)

    def _remind(self, agent: Member, now: float) -> list[FleetAction]:
        """Orders that it may have missed, or that were given before it came."""
        if self._drain is not None:
            until, reason = self._drain
        elif agent.role == "leaving":
            until, reason = agent.came + self._drain_seconds, "its successor has taken over"
        elif agent.parked:
            until, reason = now, "not needed now"
        else:
            return []
        agent.draining = True
        assert agent.peer is not None
        return [Tell(agent.peer, DrainAgent(self.epoch, max(0.0, until - now), reason)), *self._route(agent)]

    def beat(self, peer: bytes, message: AgentBeat, now: float) -> list[FleetAction]:
        agent = self._roster.on(peer)
        if agent is None:
            return []
        self._roster.listen(agent, now)
        changed = agent.absorb(message.replicas)
        actions: list[FleetAction] = []
        if agent.phase == "lost":  # it was only silent: the same connection, so no beat was missed in between
            self._roster.enter(agent, "alive", now)
            agent.reason = ""
            if agent.role == "current":
                self._route(agent)
                actions += [Up(agent.view(), peer, (), False), Changed(agent.view(), agent.route)]
            elif agent.role == "leaving":
                actions += self._remind(agent, now)
        elif changed:
            actions += self._route(agent)
        if changed and not agent.loaded and agent.ready == agent.slots:
            agent.loaded = True
            actions.append(Loaded(agent.view(), now - agent.came))
        return actions + self._settle(agent.key, now) if changed else actions

    def gone(self, peer: bytes, message: AgentGone, now: float) -> list[FleetAction]:
        agent = self._roster.on(peer)
        if agent is None:
            return []
        self._roster.disconnect(agent)
        agent.handed_back, agent.suspect = message.requeue, message.suspect
        return self._leave(agent, "gone", message.reason, now)

    def tick(self, now: float) -> list[FleetAction]:
        """Call about once a second: declares silent agents lost."""
        actions: list[FleetAction] = []
        silence = MISSED_BEATS * self._beat
        if now - self._last_tick > max(self._beat, 2.0):  # we were stopped: the beats wait in our own socket
            self._deaf_until = now + silence
        self._last_tick = now
        if now >= self._deaf_until:
            for agent in self._roster.silent(now - silence):
                actions += self._leave(agent, "lost", f"no beat for {now - agent.heard:.0f} s", now)
        if now >= self._carry_until:
            for agent in self._roster.still_expected():
                actions += self._leave(agent, "lost", "not heard since the broker's restart", now)
        return actions

    def submitted(self, job: str) -> None:
        """A new job. Slurm may give an id out again, when it lost its state: it is nobody's past any more."""
        self._retired.discard(job)

    # --- orders ----------------------------------------------------------------------------------------------

    def order(self, key: str, message: BrokerToAgent) -> list[FleetAction]:
        """Send this to the task's current agent; nothing when it is not alive."""
        agent = self._roster.current[key]
        return [Tell(agent.peer, message)] if agent.phase == "alive" and agent.peer is not None else []

    def drain(self, seconds: float, reason: str, now: float) -> list[FleetAction]:
        """End the whole fleet: every agent, also those that say hello later."""
        self._drain = (now + seconds, reason)
        return [action for key in self._roster.current for action in self._end(key, seconds, reason)]

    def park(self, key: str, seconds: float, reason: str, now: float) -> list[FleetAction]:
        """The task is not wanted until `unpark`: its agents drain and end, and nobody misses them."""
        agent = self._roster.current[key]
        agent.parked = True
        return [*self._end(key, seconds, reason), Changed(agent.view(), agent.route)]

    def unpark(self, key: str, now: float) -> list[FleetAction]:
        """The task is wanted again: recovery starts it. An agent that drains still ends first."""
        agent = self._roster.current[key]
        agent.parked = False
        if agent.phase not in ("alive", "expected"):
            agent.since = now
        return [Changed(agent.view(), agent.route)]

    def _end(self, key: str, seconds: float, reason: str) -> list[FleetAction]:
        actions: list[FleetAction] = []
        for agent in self._roster.lives(key):
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
        agent = self._roster.current[key]
        agent.weights[slot] = (incarnation, weight, probe)
        return self._route(agent)

    def share(self, shares: Sequence[Share]) -> None:
        """How requests that name no version are divided: see FleetTable."""
        self._drawing.share(shares)

    def sleep(self, asleep: bool) -> None:
        """See FleetTable.asleep."""
        self._drawing.sleep(asleep)

    # --- the table ------------------------------------------------------------------------------------

    def table(self) -> FleetTable | None:
        """The table to push, with its version raised, or None when entries already have the same one."""
        return self._drawing.next()

    def current(self) -> FleetTable:
        """The table as it was last pushed: for an entry that says hello."""
        return self._drawing.published

    @property
    def dirty(self) -> bool:
        """A table may have to be pushed."""
        return self._drawing.stale

    # --- inner -----------------------------------------------------------------------------------------------

    def _leave(self, agent: Member, phase: AgentPhase, why: str, now: float) -> list[FleetAction]:
        self._roster.enter(agent, phase, now)
        agent.reason = why
        if agent.role == "next":
            return self._lapse(agent, why)
        agent.route, self._drawing.stale = None, True
        if agent.role == "leaving":
            if agent.peer is None:
                self._roster.dismiss(agent)
            return [Changed(agent.view(), None)]
        return [Down(agent.key, why), Changed(agent.view(), None), *self._settle(agent.key, now)]

    def _lapse(self, agent: Member, why: str) -> list[FleetAction]:
        self._roster.dismiss(agent)
        return [Lapsed(agent.view(), why)]

    def _settle(self, key: str, now: float) -> list[FleetAction]:
        """Hand the task over when its successor can serve as much as the current agent, or that one ends."""
        old, new = self._roster.current[key], self._roster.next.get(key)
        if new is None or old.phase == "expected" or old.parked or self._drain is not None:
            return []
        if old.phase == "alive" and not old.ending and new.ready < max(1, old.ready):
            return []
        actions: list[FleetAction] = []
        why = f"succeeded by incarnation {new.incarnation} in job {new.job} on {new.node}"
        if old.phase == "alive" and old.peer is not None:
            actions += [Tell(old.peer, DrainAgent(self.epoch, self._drain_seconds, why)), Down(key, why)]
        self._roster.succeed(new)
        self._retired.add(old.job)
        self._route(old)
        self._route(new)
        assert new.peer is not None
        return [
            *actions,
            Retired(key, old.job),
            *([Changed(old.view(), old.route)] if old.route is not None else []),
            Up(new.view(), new.peer, (), True),
            Changed(new.view(), new.route),
        ]

    def _route(self, agent: Member) -> list[FleetAction]:
        if agent.phase == "expected" and not agent.draining:
            return []  # keeps what it had
        route = agent.earned_route()
        if route == agent.route:
            return []
        agent.route, self._drawing.stale = route, True
        return [Changed(agent.view(), route)]
