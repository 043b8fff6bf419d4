"""Taking over the fleet tables that the broker pushes: who came, who left, whose work is lost. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from exahpc.entry.fleet import Agent, AgentKey, Group, Replica
from exahpc.wire.messages import AgentRoute, FleetTable, Length

_LEARNING = 10.0  # seconds that a new broker's table may lack agents it has not heard of yet


class Changes(NamedTuple):
    """What a new table means: agents to connect to, agents and replicas that are replaced (their work is lost)."""

    opened: list[Agent]
    replaced: list[Agent]
    reborn: list[Replica]


class Roster:
    """Agents by the tables so far. node: this entry's own, "" for none; headroom: see `Replica.route`.

    groups: those of the agents that are known; versions: labels of the agents in the table, or of the last ones
    when it has none; probing: some replica is tried again after an illness.
    """

    def __init__(self, node: str, headroom: float) -> None:
        self._node, self._headroom = node, headroom
        self._seen = (0, 0)
        self._groups: dict[tuple[str, Length, bool], Group] = {}
        self.agents: dict[AgentKey, Agent] = {}
        self.versions: frozenset[str] = frozenset()
        self.probing = False

    @property
    def groups(self) -> Iterable[Group]:
        return self._groups.values()

    def update(self, table: FleetTable, now: float) -> Changes | None:
        """Take over a table. None: it is older than the one at hand (epoch first, then version).

        A replica or agent that left the table gets nothing new but keeps its requests: it may be draining. Those
        of a replica whose slot has a newer incarnation at the same agent are lost, and those of an agent that left
        while a newer incarnation of it stands in the table. As long as both do, the older one ends what it has. A
        new broker learns the fleet from the agents: whom its first tables lack keeps its routes for a while.
        """
        seen = (table.epoch, table.version)
        if seen <= self._seen:
            return None
        if table.epoch > self._seen[0]:
            for agent in self.agents.values():
                if agent.listed:
                    agent.kept_until = now + _LEARNING
        self._seen = seen
        changes = Changes([], [], [])
        routes = {AgentKey(a.pool, a.task, a.incarnation): a for a in table.agents}
        for key, route in routes.items():
            self._list(key, route, changes)
        self._leave(routes, changes.replaced, now)
        used = {agent.group for agent in self.agents.values()}
        self._groups = {place: group for place, group in self._groups.items() if group in used}
        listed = [agent for agent in self.agents.values() if agent.listed]
        self.versions = frozenset(agent.version for agent in listed) or self.versions
        self.probing = any(r.probe and r.listed for agent in listed for r in agent.replicas.values())
        return changes

    def _list(self, key: AgentKey, route: AgentRoute, changes: Changes) -> None:
        place = (route.version, route.length, self._node != "" and route.node == self._node)
        group = self._groups.get(place)
        if group is None:
            group = self._groups[place] = Group(*place)
        agent = self.agents.get(key)
        if agent is None:
            agent = self.agents[key] = Agent(key, route.address, group)
            changes.opened.append(agent)
        elif agent.group is not group:
            _move(agent, group)
        agent.listed, agent.kept_until = True, 0.0
        routes = {r.slot: r for r in route.replicas}
        for slot, replica in agent.replicas.items():
            if slot not in routes:
                _unlist(replica)
        for slot, new in routes.items():
            known = agent.replicas.get(slot)
            if known is None or known.incarnation != new.incarnation:
                if known is not None:
                    _unlist(known)
                    changes.reborn.append(known)
                known = agent.replicas[slot] = Replica(agent, slot, new.incarnation)
            known.route(new, self._headroom)
            known.settle()

    def _leave(self, routes: Iterable[AgentKey], replaced: list[Agent], now: float) -> None:
        present = set(routes)
        newest: dict[tuple[str, int], int] = {}
        for pool, task, incarnation in present:
            newest[pool, task] = max(incarnation, newest.get((pool, task), -1))
        for key, agent in self.agents.items():
            if key in present:
                continue
            if agent.listed and agent.kept_until > now:
                continue
            if newest.get((key.pool, key.task), -1) > key.incarnation:
                replaced.append(agent)
            _unlist_all(agent)

    def expire(self, now: float) -> list[Agent]:
        """Agents that no table names (any more)."""
        for agent in self.agents.values():
            if agent.listed and 0.0 < agent.kept_until <= now:
                _unlist_all(agent)
        return [agent for agent in self.agents.values() if not agent.listed]

    def forget(self, agent: Agent) -> None:
        """An agent that the table no longer names, once nothing runs there."""
        del self.agents[agent.key]

    @property
    def ready(self) -> int:
        """Replicas that route: listed, with weight, behind a link that stands."""
        return sum(self._routes())

    @property
    def serves(self) -> bool:
        """Whether any does. Costs nothing while one of the first does."""
        return any(self._routes())

    def _routes(self) -> Iterator[bool]:
        """Of each replica behind a link that stands, whether it routes."""
        return (
            replica.listed and replica.weight > 0
            for agent in self.agents.values()
            if agent.up
            for replica in agent.replicas.values()
        )


def _unlist_all(agent: Agent) -> None:
    agent.listed, agent.kept_until = False, 0.0
    for replica in agent.replicas.values():
        _unlist(replica)


def _unlist(replica: Replica) -> None:
    replica.listed = False
    replica.settle()


def _move(agent: Agent, group: Group) -> None:
    """Its pool's length class or its version is another one now."""
    for replica in agent.replicas.values():
        _unlist(replica)
    agent.group = group
