"""Agents and their replicas as one entry knows them: who they are, whether they take traffic, their load. Pure.

Every replica that can take a request stands in one list: that of its *group* (the replicas that are alike to a
request) and its *level* (how gladly it takes one). Entering and leaving a list costs the same however long it is,
so nothing here or in `routing` ever walks the fleet for a request.
"""

from __future__ import annotations

from typing import NamedTuple

from exahpc.wire.messages import Length, Load, Route

ROOMY, TIGHT, CROWDED, PROBE = range(4)
"""Levels. Roomy: below its headroom. Tight: into it. Crowded: no sequence or hardly any KV cache is free, by its
agent's last report. Probe: tried again after an illness, and idle."""
KV_NEARLY_FULL = 0.9
"""Share of a replica's KV cache above which a newcomer may make others give way."""
REPORT_SECONDS = 5.0
"""What an agent reported of the load counts so long; it tells steady load every two (`agent.entries`)."""


class AgentKey(NamedTuple):
    """One agent process. A restarted agent is another one: its link and its requests are new."""

    pool: str
    task: int
    incarnation: int


class Group:
    """Replicas of one version and length class, on this entry's own node (local) or elsewhere; open: by level."""

    __slots__ = ("length", "local", "open", "version")

    def __init__(self, version: str, length: Length, local: bool) -> None:
        self.version, self.length, self.local = version, length, local
        self.open: tuple[list[Replica], ...] = ([], [], [], [])


class Agent:
    """One agent. up: its link stands; listed: the table names it; kept_until: a new broker may not know it yet."""

    __slots__ = ("address", "group", "kept_until", "key", "listed", "name", "replicas", "up")

    def __init__(self, key: AgentKey, address: str, group: Group) -> None:
        self.key, self.address, self.group = key, address, group
        self.name = f"{key.pool}/{key.task}"
        self.replicas: dict[int, Replica] = {}
        self.up = False
        self.listed = True
        self.kept_until = 0.0

    @property
    def version(self) -> str:
        """Label of the deployment file that it serves."""
        return self.group.version


class Replica:
    """One incarnation of a replica and this entry's load on it.

    tokens, sequences: this entry's own, always right; others, crowd: tokens and sequences of all others, and kv:
    share of the KV cache that is held, by the last report; comfort: sequences below which it is roomy; level,
    place: which list it stands in and where, -1 when it can take nothing; factor: what its load counts.
    """

    __slots__ = (
        "agent", "busy", "busy_at", "capacity", "comfort", "crowd", "factor", "held_until", "incarnation", "kv",
        "level", "listed", "others", "others_until", "place", "probe", "sequences", "slot", "tokens", "weight",
    )  # fmt: skip

    def __init__(self, agent: Agent, slot: int, incarnation: int) -> None:
        self.agent, self.slot, self.incarnation = agent, slot, incarnation
        self.capacity = self.comfort = 0
        self.weight, self.probe, self.factor = 1.0, False, 1.0
        self.tokens = self.sequences = 0
        self.others = self.crowd = 0
        self.kv = self.others_until = 0.0
        self.busy, self.busy_at, self.held_until = 0, 0.0, 0.0
        self.listed = True
        self.level = self.place = -1

    def __str__(self) -> str:
        return f"{self.agent.name} slot {self.slot}.{self.incarnation}"

    def route(self, route: Route, headroom: float) -> None:
        """What the table says of it. headroom: share of its sequences that is kept free while others have room."""
        self.capacity, self.weight, self.probe = route.capacity, route.weight, route.probe
        self.comfort = max(1, int(route.capacity * (1.0 - headroom)))
        self.listed = True
        self._count()

    def report(self, load: Load, now: float) -> None:
        """What its agent says of it, for all entries together."""
        self.others = max(0, load.tokens - self.tokens)
        self.crowd = max(0, load.sequences - self.sequences)
        self.kv, self.others_until = load.kv, now + REPORT_SECONDS
        self._count()

    def forget_report(self) -> None:
        """Its agent cannot tell any more: a link was lost."""
        self.others, self.crowd, self.kv, self.others_until = 0, 0, 0.0, 0.0
        self._count()

    def _count(self) -> None:
        """A step costs more the more KV cache its sequences hold; who has less weight gets less."""
        self.factor = (1.0 + self.kv) / self.weight if self.weight > 0.0 else 0.0

    def load(self, now: float) -> int:
        """Outstanding tokens as far as known."""
        return self.tokens + self.others if now < self.others_until else self.tokens

    def fits(self, sequences: int) -> bool:
        """False when this entry's own sequences already fill it. An idle replica is asked in any case."""
        return self.sequences == 0 or self.sequences + sequences <= self.capacity

    def settle(self) -> None:
        """Stand in the list that its state asks for; call after every change of it."""
        level = self._standing()
        if level == self.level:
            return
        lists = self.agent.group.open
        if self.level >= 0:
            left = lists[self.level]
            last = left.pop()
            if last is not self:
                left[self.place] = last
                last.place = self.place
        self.level, self.place = level, -1
        if level >= 0:
            self.place = len(lists[level])
            lists[level].append(self)

    def _standing(self) -> int:
        if not (
            self.sequences < self.capacity
            and self.held_until == 0.0
            and self.listed
            and self.agent.up
            and self.weight > 0.0
        ):
            return -1
        if self.probe:
            return PROBE if self.sequences == 0 else -1
        taken = self.sequences + self.crowd
        if self.kv >= KV_NEARLY_FULL or taken >= self.capacity:
            return CROWDED
        return ROOMY if taken < self.comfort else TIGHT
