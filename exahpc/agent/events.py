"""What the agent's core is told (events) and what it answers (actions): frozen values. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from exahpc.wire.messages import DrainAgent, RestartReplica, SwitchVersion, Welcome

# --- events ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Adopted:
    """A living step of an earlier agent was found. was_ready: its canary had answered then."""

    slot: int
    incarnation: int
    was_ready: bool


@dataclass(frozen=True, slots=True)
class Launched:
    slot: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class LaunchFailed:
    slot: int
    story: str


@dataclass(frozen=True, slots=True)
class Hello:
    """The replica answered Adopt: weights are loaded, and it runs no sequence."""

    slot: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class CanaryEnded:
    """problem: None when the canary gave what it should."""

    slot: int
    incarnation: int
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class LinkLost:
    slot: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The step is gone, all its processes. own_exit: by itself, not by a signal from outside."""

    slot: int
    incarnation: int
    story: str
    own_exit: bool


@dataclass(frozen=True, slots=True)
class Moved:
    """The replica yielded `tokens` tokens."""

    slot: int
    incarnation: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Beat:
    slot: int
    incarnation: int
    running: int
    waiting: int
    kv_free: int
    steps: int
    idle: tuple[float, ...] = ()
    prefix_hits: int = 0
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passes. busy: slots with work in flight; slept: seconds by which this tick is late, because the agent
    itself was stopped or blocked and could hear nobody."""

    busy: frozenset[int] = frozenset()
    slept: float = 0.0


@dataclass(frozen=True, slots=True)
class Drain:
    """End this agent: nothing new, finish within `seconds`. again: to be started in place right afterwards;
    suspect: its node may be at fault."""

    seconds: float
    reason: str
    requeue: bool
    again: bool = False
    suspect: bool = False


@dataclass(frozen=True, slots=True)
class Order:
    """A message of the broker that commands."""

    message: Welcome | RestartReplica | DrainAgent | SwitchVersion


Event = (
    Adopted
    | Launched
    | LaunchFailed
    | Hello
    | CanaryEnded
    | LinkLost
    | Ended
    | Moved
    | Beat
    | Tick
    | Drain
    | Order
)


# --- actions -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a step under a fresh incarnation; answered by Launched or LaunchFailed."""

    slot: int


@dataclass(frozen=True, slots=True)
class Probe:
    """Run the canary; answered by CanaryEnded."""

    slot: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Serve:
    """The replica takes traffic from now on."""

    slot: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Lost:
    """The replica no longer runs what it was given. story: how it ended, when that was by itself."""

    slot: int
    own_exit: bool
    story: str = ""


@dataclass(frozen=True, slots=True)
class Stop:
    """Ask the step to end in order."""

    slot: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Kill:
    slot: int
    incarnation: int
    reason: str


@dataclass(frozen=True, slots=True)
class Tell:
    """The phase changed: the broker should know now."""

    slot: int


@dataclass(frozen=True, slots=True)
class CloseIntake:
    """Nothing new from now on."""

    reason: str


@dataclass(frozen=True, slots=True)
class Reconnect:
    """This broker is older than another one that was seen: look again where the broker is."""


@dataclass(frozen=True, slots=True)
class Finish:
    """End the process. requeue: the task goes back to Slurm; suspect: to run on another node."""

    code: int
    reason: str
    requeue: bool
    suspect: bool = False


Action = Launch | Probe | Serve | Lost | Stop | Kill | Tell | CloseIntake | Reconnect | Finish
