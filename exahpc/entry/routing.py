"""Which replica takes a request: least outstanding tokens; above a handful, the better of two random ones. Pure.

What is known of a replica's load: what this entry itself has outstanding there, always right, plus what its agent
last reported for all entries together, believed for a short while. The agent stays the authority: it answers Busy,
and that replica is left alone for a moment. Replicas that can take a request stand in one list with O(1) insertion
and removal, so picking costs the same at 3 and at 3,072 replicas.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import NamedTuple

from exahpc.entry.fleet import Agent, AgentKey, Replica
from exahpc.wire.messages import AgentRoute, FleetTable, Load

SMALL = 8  # up to so many open replicas all are compared
_DRAWS = 8  # random looks for a pair that fits, in a big fleet
_REPORT_LIFE = 2.0  # seconds that a report of other entries' load counts
_HOLD, _LONGEST_HOLD = (
    0.02,
    0.64,
)  # seconds that a busy replica is left alone, doubled with each busy answer in a row
_LEARNING = 10.0  # seconds that a new broker's table may lack agents it has not heard of yet


class Changes(NamedTuple):
    """What a new table means: agents to connect to, agents and replicas that are replaced (their work is lost)."""

    opened: list[Agent]
    replaced: list[Agent]
    reborn: list[Replica]


class Router:
    """The fleet as this entry sees it. draw(n): a random whole number in [0, n)."""

    def __init__(self, draw: Callable[[int], int]) -> None:
        self._draw = draw
        self.agents: dict[AgentKey, Agent] = {}
        self._open: list[Replica] = []
        self._held: list[tuple[float, int, Replica]] = []
        self._tick = 0
        self._version = (0, 0)

    # --- the table ---

    def update(self, table: FleetTable, now: float) -> Changes | None:
        """Take over a table. None: it is older than the one at hand (epoch first, then version).

        A replica that left the table without a successor gets nothing new but keeps its requests: it may be
        draining. One whose place was taken by a newer incarnation is gone, and so is what ran there. A new broker
        learns the fleet from the agents: whom its first tables lack keeps its routes for a while.
        """
        version = (table.epoch, table.version)
        if version <= self._version:
            return None
        if table.epoch > self._version[0]:
            for agent in self.agents.values():
                if agent.listed:
                    agent.kept_until = now + _LEARNING
        self._version = version
        changes = Changes([], [], [])
        seen = {AgentKey(a.pool, a.task, a.incarnation): a for a in table.agents}
        newest = {(key.pool, key.task): key.incarnation for key in seen}
        for key, route in seen.items():
            if key not in self.agents:
                self.agents[key] = Agent(key, route.address)
                changes.opened.append(self.agents[key])
            agent = self.agents[key]
            agent.listed, agent.kept_until = True, 0.0
            self._update_agent(agent, route, changes.reborn)
        for key, agent in self.agents.items():
            if key in seen:
                continue
            if newest.get((key.pool, key.task), -1) > key.incarnation:
                changes.replaced.append(agent)
                agent.kept_until = 0.0
            if agent.kept_until <= now:
                self._unlist_agent(agent)
        return changes

    def expire(self, now: float) -> list[Agent]:
        """Agents that no table names (any more)."""
        for agent in self.agents.values():
            if agent.listed and 0.0 < agent.kept_until <= now:
                self._unlist_agent(agent)
        return [agent for agent in self.agents.values() if not agent.listed]

    def _unlist_agent(self, agent: Agent) -> None:
        agent.listed, agent.kept_until = False, 0.0
        for replica in agent.replicas.values():
            self._unlist(replica)

    def _update_agent(self, agent: Agent, route: AgentRoute, reborn: list[Replica]) -> None:
        routes = {r.slot: r for r in route.replicas}
        for slot, replica in agent.replicas.items():
            if slot not in routes:
                self._unlist(replica)
        for slot, new in routes.items():
            known = agent.replicas.get(slot)
            if known is None or known.incarnation != new.incarnation:
                if known is not None:
                    self._unlist(known)
                    reborn.append(known)
                known = agent.replicas[slot] = Replica(agent, new)
            known.capacity, known.weight, known.listed = new.capacity, new.weight, True
            self._settle(known)

    def _unlist(self, replica: Replica) -> None:
        replica.listed = False
        self._settle(replica)

    def forget(self, agent: Agent) -> None:
        """An agent that the table no longer names, once nothing runs there."""
        del self.agents[agent.key]

    def link(self, agent: Agent, up: bool) -> None:
        """The link to `agent` came up or was lost."""
        agent.up = up
        for replica in agent.replicas.values():
            self._settle(replica)

    # --- load ---

    def take(self, replica: Replica, sequences: int, tokens: int) -> None:
        """A request goes there."""
        replica.sequences += sequences
        replica.tokens += tokens
        self._settle(replica)

    def give_back(self, replica: Replica, sequences: int, tokens: int) -> None:
        """What a request that left `replica` still had there."""
        replica.sequences -= sequences
        replica.tokens -= tokens
        self._settle(replica)

    def busy(self, replica: Replica, now: float) -> None:
        """It answered Busy: leave it alone for a moment, longer each time in a row."""
        replica.held_until = now + min(_LONGEST_HOLD, _HOLD * 2 ** min(replica.busy, 10))
        replica.busy_at = now
        replica.busy += 1
        self._tick += 1
        heappush(self._held, (replica.held_until, self._tick, replica))
        self._settle(replica)

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
            replica.others = max(0, load.tokens - replica.tokens)
            replica.others_until = now + _REPORT_LIFE
            if replica.held_until and now - replica.busy_at >= _HOLD:
                replica.held_until = 0.0
                self._settle(replica)

    # --- picking ---

    def pick(self, sequences: int, tokens: int, now: float, shun: Replica | None = None) -> Replica | None:
        """The replica for a request, or None when none can take it now. `shun` is taken only if it is alone."""
        self._release(now)
        count = len(self._open)
        if count == 0:
            return None
        best: Replica | None = None
        least = 0.0
        start = self._draw(count)
        for turn in range(min(count, _DRAWS) if count > SMALL else count):
            # a random start spreads ties of a small fleet; a big one is only sampled
            place = (start + turn) % count if count <= SMALL or turn == 0 else self._draw(count)
            replica = self._open[place]
            if replica is best or not replica.fits(sequences) or (replica is shun and count > 1):
                continue
            score = (replica.load(now) + tokens) / replica.weight
            if best is None:
                best, least = replica, score
                continue
            if score < least:
                best, least = replica, score
            if count > SMALL:
                break
        return best

    @property
    def ready(self) -> int:
        """Replicas that route: listed, with weight, behind a link that stands."""
        return sum(
            replica.listed and replica.weight > 0
            for agent in self.agents.values()
            if agent.up
            for replica in agent.replicas.values()
        )

    def next_release(self) -> float | None:
        """When the next held replica may be tried again."""
        return self._held[0][0] if self._held else None

    def _release(self, now: float) -> None:
        while self._held and self._held[0][0] <= now:
            _, _, replica = heappop(self._held)
            if 0.0 < replica.held_until <= now:  # not let go, or held again, meanwhile
                replica.held_until = 0.0
                self._settle(replica)

    def _settle(self, replica: Replica) -> None:
        """Put it into the list of open replicas or take it out, as its state says."""
        wanted = (
            replica.sequences < replica.capacity
            and replica.held_until == 0.0
            and replica.listed
            and replica.agent.up
            and replica.weight > 0
        )
        if wanted == (replica.place >= 0):
            return
        if wanted:
            replica.place = len(self._open)
            self._open.append(replica)
            return
        last = self._open.pop()
        if last is not replica:
            self._open[replica.place] = last
            last.place = replica.place
        replica.place = -1
