"""The health of one replica: its states as a table of transitions, and what is remembered of it. Pure.

healthy <-> degraded -> tripped -> probing -> healthy
             silent -> restarting -> healthy (the next incarnation)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from exahpc.errors import StateError
from exahpc.wire.messages import ReplicaState

State = Literal["healthy", "degraded", "tripped", "probing", "silent", "restarting"]
Sign = Literal["warm", "hot", "cool", "rested", "silent", "moved", "restart", "reborn"]
"""warm, hot, cool: slower than its peers, much slower, or not; rested: long enough out of traffic; silent: work in
flight, but neither token nor step; moved: it computes again; restart: its end was ordered; reborn: the next
incarnation."""

TRANSITIONS: dict[tuple[State, Sign], State] = {
    ("healthy", "warm"): "degraded",
    ("healthy", "hot"): "tripped",
    ("healthy", "silent"): "silent",
    ("degraded", "cool"): "healthy",
    ("degraded", "hot"): "tripped",
    ("degraded", "silent"): "silent",
    ("tripped", "rested"): "probing",
    ("tripped", "silent"): "silent",
    ("tripped", "restart"): "restarting",
    ("probing", "cool"): "healthy",
    ("probing", "hot"): "tripped",
    ("probing", "silent"): "silent",
    ("silent", "moved"): "degraded",
    ("silent", "restart"): "restarting",
    ("restarting", "restart"): "restarting",  # the order was lost
    ("healthy", "reborn"): "healthy",
    ("degraded", "reborn"): "healthy",
    ("tripped", "reborn"): "healthy",
    ("probing", "reborn"): "healthy",
    ("silent", "reborn"): "healthy",
    ("restarting", "reborn"): "healthy",
}

WEIGHTS: dict[State, float] = {
    "healthy": 1.0,
    "degraded": 0.5,
    "tripped": 0.0,
    "probing": 0.1,
    "silent": 0.0,
    "restarting": 0.0,
}
"""Share of the traffic of a healthy replica."""

SERVING: frozenset[State] = frozenset({"healthy", "degraded"})


@dataclass(frozen=True, slots=True)
class Weigh:
    """This replica's share of traffic. what: the decision in words."""

    key: str
    slot: int
    incarnation: int
    weight: float
    probe: bool
    what: str


@dataclass(frozen=True, slots=True)
class Restart:
    """Kill its step and start a new one: what it runs goes elsewhere."""

    key: str
    slot: int
    incarnation: int
    why: str


@dataclass(frozen=True, slots=True)
class HandBack:
    """Let this task run on another node."""

    key: str
    why: str


Order = Weigh | Restart | HandBack


def carried(weight: float, probe: bool) -> State:
    """The state that a broker takes over with a route of its predecessor."""
    if probe or weight == 0:
        return "tripped"
    return "healthy" if weight == 1 else "degraded"


@dataclass(slots=True, eq=False)
class Replica:
    """Mutable; only `health` changes it. Times in seconds of the broker's clock.

    told: the last that its agent said; why, since: of the state; judged: when that was last confirmed or changed;
    hot, cool: windows in a row; trips: in a row; until: end of the rest; slow: out of traffic for its latency or
    its answers; restarted: since its trips began; tokens, ended, worthless: generated, answers, and bad ones of
    them at the last count; bad: share of bad ones in the last full count.
    """

    key: str
    told: ReplicaState
    since: float
    judged: float
    tokens: int
    ended: int
    worthless: int
    state: State = "healthy"
    why: str = ""
    hot: int = 0
    cool: int = 0
    trips: int = 0
    until: float = 0.0
    slow: bool = False
    restarted: bool = False
    bad: float = 0.0

    @staticmethod
    def of(key: str, told: ReplicaState, now: float) -> Replica:
        replica = Replica(key, told, now, now, told.tokens, 0, 0)
        replica.count()
        return replica

    def __str__(self) -> str:
        return f"{self.key} slot {self.told.slot}.{self.told.incarnation}"

    @property
    def serving(self) -> bool:
        return self.told.phase == "ready" and self.state in SERVING

    def answers(self) -> tuple[int, int]:
        """(all, bad ones) since the last count. An agent that was restarted counts from 0, under the same step."""
        service = self.told.service
        if service.served + service.failed < self.ended:
            self.count()
        return (
            service.served + service.failed - self.ended,
            service.odd + service.failed - self.worthless,
        )

    def count(self) -> None:
        """Begin a new count of answers."""
        service = self.told.service
        self.ended, self.worthless = service.served + service.failed, service.odd + service.failed

    def moves(self) -> bool:
        """Whether it did anything since the last time that it was asked: only then its figures are news."""
        moved = self.told.tokens != self.tokens or self.told.token_age > 0
        self.tokens = self.told.tokens
        return moved

    def note(self, *, hot: bool, warm: bool, now: float) -> None:
        """It was compared."""
        self.judged = now
        self.hot = self.hot + 1 if hot else 0
        self.cool = 0 if warm else self.cool + 1

    def step(self, sign: Sign, why: str, now: float) -> None:
        """Take one transition. Raises StateError when the table does not know it."""
        after = TRANSITIONS.get((self.state, sign))
        if after is None:
            raise StateError(f"replica {self} cannot take {sign!r} while {self.state!r} ({self.why})")
        self.state, self.why, self.since, self.judged, self.cool = after, why, now, now, 0

    def reborn(self, told: ReplicaState) -> None:
        """The next incarnation: of the last one only its trips count."""
        self.told, self.tokens, self.bad, self.hot, self.cool = told, told.tokens, 0.0, 0, 0
        self.ended = self.worthless = 0
