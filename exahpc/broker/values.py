"""What the broker's pure cores hand to each other and to the loop that acts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from exahpc.wire.messages import AgentRoute, BrokerToAgent

AgentPhase = Literal["unheard", "expected", "alive", "lost", "gone"]
"""unheard: wanted, never met; expected: an earlier broker knew it and this one has not heard it yet; alive: its
beats arrive; lost: five beats missed; gone: it said good-bye."""


@dataclass(frozen=True)
class AgentView:
    """One array task as the fleet knows it. since: when the phase began; job: "<array>_<task>" or "".

    reason: why it is gone; handed_back: it asked Slurm itself to run the task again; version: see AgentHello.
    """

    key: str
    pool: str
    task: int
    phase: AgentPhase
    since: float
    incarnation: int = 0
    node: str = ""
    job: str = ""
    reason: str = ""
    handed_back: bool = False
    version: str = ""


@dataclass(frozen=True)
class Tell:
    """Send `message` to this connection of an agent."""

    peer: bytes
    message: BrokerToAgent


@dataclass(frozen=True)
class Up:
    """An agent said hello (or is heard again). leases: what it says it works on; fresh: a new incarnation."""

    view: AgentView
    peer: bytes
    leases: tuple[int, ...]
    fresh: bool


@dataclass(frozen=True)
class Down:
    """An agent works no more: lost, gone, or replaced by a newer incarnation. Its leases are free."""

    key: str
    why: str


@dataclass(frozen=True)
class Changed:
    """What a restarted broker should know about this agent has changed: to be journalled."""

    view: AgentView
    route: AgentRoute | None


@dataclass(frozen=True)
class Ignored:
    """A message that is not acted upon, and why: for the log."""

    why: str


@dataclass(frozen=True)
class Decided:
    """Something was decided that an operator will want to find in the log."""

    what: str


@dataclass(frozen=True)
class Superseded:
    """Somebody obeys a broker of a higher epoch: this one must end."""

    epoch: int
    why: str


FleetAction = Tell | Up | Down | Changed | Ignored | Decided | Superseded
