"""What the broker's pure cores hand to each other and to the loop that acts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from exahpc.broker.versions import RolloutState
from exahpc.wire.messages import AgentRoute, BrokerToAgent

AgentPhase = Literal["unheard", "expected", "alive", "lost", "gone"]
"""unheard: wanted, never met; expected: an earlier broker knew it and this one has not heard it yet; alive: its
beats arrive; lost: four beats missed; gone: it said good-bye."""


@dataclass(frozen=True)
class AgentView:
    """One array task as the fleet knows it. since: when the phase began; job: "<array>_<task>" or "".

    reason: why it is gone; handed_back: it asked Slurm itself to run the task again; suspect: because of its node;
    parked: the task is not wanted now; leaving: its task has another agent, and it drains; version, until: see
    AgentHello; sequences: those that each of its replicas runs at once.
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
    suspect: bool = False
    parked: bool = False
    leaving: bool = False
    until: float = 0.0
    version: str = ""
    sequences: int = 0


@dataclass(frozen=True)
class JobWord:
    """What Slurm said of an absent task's job since its agent went away. over: in which words it ended by itself,
    "" while it did not; taken: Slurm or somebody took its nodes away, whatever ran there: cancelled, preempted, at
    its limit, or waiting to be run again."""

    over: str = ""
    taken: bool = False


NO_WORD = JobWord()


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
class Coming:
    """A successor of a task said hello: its replicas load while the current agent serves."""

    view: AgentView


@dataclass(frozen=True)
class Lapsed:
    """A successor that had come is of no use any more: silent, or it ended."""

    view: AgentView
    why: str


@dataclass(frozen=True)
class Loaded:
    """All replicas of an agent are ready for the first time, so many seconds after its hello."""

    view: AgentView
    seconds: float


@dataclass(frozen=True)
class Retired:
    """A job whose task lives in another one from now on: whoever still speaks from it is told to end."""

    key: str
    job: str


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
class Switch:
    """Note in the folder that this task loads `version` from its next start on; then tell its agent, if one is
    there, to drain within `seconds` and start again. Performed in order."""

    key: str
    version: str
    seconds: float


@dataclass(frozen=True)
class InForce:
    """Note in the folder which version tasks load that are assigned to none. Performed in order, with Switch."""

    version: str


@dataclass(frozen=True)
class RolloutMoved:
    """Where the rollout stands has changed: to be journalled, before what follows is done."""

    state: RolloutState


@dataclass(frozen=True)
class Superseded:
    """Somebody obeys a broker of a higher epoch: this one must end."""

    epoch: int
    why: str


FleetAction = (
    Tell
    | Up
    | Down
    | Coming
    | Lapsed
    | Loaded
    | Retired
    | Changed
    | Ignored
    | Decided
    | Switch
    | InForce
    | RolloutMoved
    | Superseded
)
