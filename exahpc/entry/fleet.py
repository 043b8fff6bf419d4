"""Agents and their replicas as one entry knows them: who they are, whether they take traffic, their load. Pure."""

from __future__ import annotations

from typing import NamedTuple

from exahpc.wire.messages import Route


class AgentKey(NamedTuple):
    """One agent process. A restarted agent is another one: its link and its requests are new."""

    pool: str
    task: int
    incarnation: int


class Agent:
    """One agent. up: its link stands; listed: the table names it; kept_until: a new broker may not know it yet."""

    __slots__ = ("address", "kept_until", "key", "listed", "name", "replicas", "up")

    def __init__(self, key: AgentKey, address: str) -> None:
        self.key, self.address = key, address
        self.name = f"{key.pool}/{key.task}"
        self.replicas: dict[int, Replica] = {}
        self.up = False
        self.listed = True
        self.kept_until = 0.0


class Replica:
    """One incarnation of a replica and this entry's load on it. place: index in the router's list, or -1."""

    __slots__ = (
        "agent",
        "busy",
        "busy_at",
        "capacity",
        "held_until",
        "incarnation",
        "listed",
        "others",
        "others_until",
        "place",
        "sequences",
        "slot",
        "tokens",
        "weight",
    )

    def __init__(self, agent: Agent, route: Route) -> None:
        self.agent, self.slot, self.incarnation = agent, route.slot, route.incarnation
        self.capacity, self.weight = route.capacity, route.weight
        self.tokens = self.sequences = 0
        self.others, self.others_until = 0, 0.0
        self.busy, self.busy_at, self.held_until = 0, 0.0, 0.0
        self.listed = True
        self.place = -1

    def __str__(self) -> str:
        return f"{self.agent.name} slot {self.slot}.{self.incarnation}"

    def load(self, now: float) -> int:
        """Outstanding tokens as far as known."""
        return self.tokens + self.others if now < self.others_until else self.tokens

    def fits(self, sequences: int) -> bool:
        """False when this entry's own sequences already fill it. An idle replica is asked in any case."""
        return self.sequences == 0 or self.sequences + sequences <= self.capacity
