"""Which replica takes a request: the less loaded of two random ones, among those that it should go to. Pure.

What is known of a replica's load: what this entry itself has outstanding there, always right, plus what its agent
last reported for all entries together. The agent stays the authority: it answers Busy, and that replica is left
alone for a moment. `fleet` keeps the replicas that can take a request in lists, and `ladder` says in which order a
kind of request goes through them, so that picking costs the same at 3 and at 3,072 replicas.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from exahpc.deployment.policy import Routing
from exahpc.entry import ladder
from exahpc.entry.affinity import Affinity
from exahpc.entry.fleet import ROOMY, Agent, AgentKey, Replica
from exahpc.entry.ladder import Kind, Ladder
from exahpc.entry.picking import Ask, better, saves
from exahpc.entry.table import Changes, Roster
from exahpc.entry.versions import LOTS, Shares
from exahpc.wire.messages import FleetTable, Load

PROBE_EVERY = 8  # requests, of which one goes to a replica on probation if one is free
_HOLD, _LONGEST_HOLD = 0.02, 0.64  # seconds that a busy replica is left alone: doubled by each answer in a row
_BYTES_PER_TOKEN = 4  # of a prompt, roughly


class Router:
    """The fleet as this entry sees it. draw(n): a random whole number in [0, n); node: this entry's own, when it
    runs beside an agent."""

    def __init__(self, draw: Callable[[int], int], routing: Routing | None = None, node: str = "") -> None:
        routing = routing or Routing()
        self._draw = draw
        self._long, self._spill = routing.long_tokens, routing.spill_seconds
        self._roster = Roster(node, routing.headroom)
        self._shares = Shares([])
        self._affinity = Affinity()
        self.known = self.affine = 0
        """Picks of whose prompt some replica had the beginning, and those that went there."""
        self._classes = False  # some pool is for short or for long requests only
        self._alike = True  # all requests that name no version go the same way
        self._ladders: dict[tuple[Kind, tuple[str, ...] | None], Ladder] = {}
        self._plain = self._ladder("any", None)
        self._since_probe = 0
        self._held: list[tuple[float, int, Replica]] = []
        self._tick = 0

    # --- the fleet ---

    @property
    def agents(self) -> dict[AgentKey, Agent]:
        """All that have a link, also while they drain."""
        return self._roster.agents

    @property
    def versions(self) -> frozenset[str]:
        """Labels that a client may ask for."""
        return self._roster.versions

    @property
    def ready(self) -> int:
        """Replicas that take traffic. Looks at all of them."""
        return self._roster.ready

    @property
    def serves(self) -> bool:
        """Whether any does."""
        return self._roster.serves

    def update(self, table: FleetTable, now: float) -> Changes | None:
        """Take over a table. None: it is older than the one at hand (epoch first, then version)."""
        changes = self._roster.update(table, now)
        if changes is not None:
            self._shares = Shares(table.shares)
            self._classes = any(group.length != "any" for group in self._roster.groups)
            self._alike = not self._shares and not self._classes
            self._ladders.clear()
            self._plain = self._ladder("any", None)
        return changes

    def expire(self, now: float) -> list[Agent]:
        """Agents that no table names (any more)."""
        return self._roster.expire(now)

    def forget(self, agent: Agent) -> None:
        """An agent that the table no longer names, once nothing runs there."""
        self._roster.forget(agent)

    def link(self, agent: Agent, up: bool) -> None:
        """The link to `agent` came up or was lost."""
        agent.up = up
        for replica in agent.replicas.values():
            replica.forget_report()
            replica.settle()

    # --- load ---

    def take(self, replica: Replica, sequences: int, tokens: int) -> None:
        """A request goes there."""
        replica.sequences += sequences
        replica.tokens += tokens
        if replica.level != ROOMY or replica.sequences + replica.crowd >= replica.comfort:
            replica.settle()

    def give_back(self, replica: Replica, sequences: int, tokens: int) -> None:
        """What a request that left `replica` still had there."""
        replica.sequences -= sequences
        replica.tokens -= tokens
        if replica.level != ROOMY:
            replica.settle()

    def busy(self, replica: Replica, now: float) -> None:
        """It answered Busy: leave it alone for a moment, longer each time in a row."""
        replica.held_until = now + min(_LONGEST_HOLD, _HOLD * 2 ** min(replica.busy, 10))
        replica.busy_at = now
        replica.busy += 1
        self._tick += 1
        heappush(self._held, (replica.held_until, self._tick, replica))
        replica.settle()

    def served(self, replica: Replica) -> None:
        """It took a request: earlier busy answers are history."""
        replica.busy = 0

    def room(self, agent: Agent, loads: list[Load], now: float) -> None:
        """Its agent says how much each replica has to do, for all entries.

        Reports come right after a busy answer, and when room comes back: the latter lets a held replica go.
        """
        for load in loads:
            replica = agent.replicas.get(load.slot)
            if replica is None:
                continue
            replica.report(load, now)
            if replica.held_until and now - replica.busy_at >= _HOLD:
                replica.held_until = 0.0
            replica.settle()

    def next_release(self) -> float | None:
        """When the next held replica may be tried again."""
        return self._held[0][0] if self._held else None

    def _release(self, now: float) -> None:
        while self._held and self._held[0][0] <= now:
            _, _, replica = heappop(self._held)
            if 0.0 < replica.held_until <= now:  # not let go, or held again, meanwhile
                replica.held_until = 0.0
                replica.settle()

    # --- picking ---

    def pick(self, ask: Ask, now: float, waited: float = 0.0) -> Replica | None:
        """The replica for a request that has waited so many seconds, or None when none can take it now.

        `ask.shun` is taken only when it is alone.
        """
        if self._held:
            self._release(now)
        if self._alike and ask.version is None:
            steps = self._plain
        else:
            steps = self._ladder(self._kind(ask, waited), self._versions(ask))
        if self._roster.probing and (probe := self._probe(steps, ask)) is not None:
            return probe
        for rung in steps.rungs:
            best = better(rung, ask, now, self._draw)
            if best is not None:
                return self._kin(best, steps, ask, now) if ask.prefix else best
        shun = ask.shun
        if shun is not None and shun.level >= 0 and shun.fits(ask.sequences):
            home = shun.agent.group.open[shun.level]
            if any(home is one for rung in steps.rungs for one in rung):
                return shun
        return None

    def lane(self, ask: Ask) -> str:
        """Requests of one lane can go to the same replicas."""
        if self._alike and ask.version is None:
            return ""
        versions = self._versions(ask)
        return f"{self._kind(ask, 0.0)} {'*' if versions is None else ','.join(versions)}"

    def _ladder(self, kind: Kind, versions: tuple[str, ...] | None) -> Ladder:
        found = self._ladders.get((kind, versions))
        if found is None:
            found = self._ladders[kind, versions] = ladder.make(self._roster.groups, kind, versions)
        return found

    def _kind(self, ask: Ask, waited: float) -> Kind:
        if not self._classes:
            return "any"
        if ask.size < self._long:
            return "short"
        return "late" if waited >= self._spill else "long"

    def _versions(self, ask: Ask) -> tuple[str, ...] | None:
        """What it must run at, or what it drew and where it may go when there is no room."""
        if ask.version is not None:
            return (ask.version,)
        if not self._shares:
            return None
        if ask.lot < 0:  # once: who is tried again must not draw again until it finds room
            ask.lot = self._draw(LOTS)
        return self._shares.of(ask.lot)

    def _probe(self, steps: Ladder, ask: Ask) -> Replica | None:
        """Every now and then a replica on probation. Not for who was interrupted before: it has waited enough."""
        self._since_probe += 1
        if self._since_probe < PROBE_EVERY or ask.deaths:
            return None
        for home in steps.probes:
            if home:
                self._since_probe = 0
                return home[self._draw(len(home))]
        return None

    def _kin(self, best: Replica, steps: Ladder, ask: Ask, now: float) -> Replica:
        """Who lately computed the beginning of this prompt, if that is the better choice."""
        kin, common = self._affinity.recall(ask.prefix)
        saved = common // _BYTES_PER_TOKEN
        if kin is not None:
            self.known += 1
            if kin.agent.group in steps.own and saves(kin, best, saved, ask, now):
                best = kin
            self.affine += best is kin
        self._affinity.remember(ask.prefix, best)
        return best
