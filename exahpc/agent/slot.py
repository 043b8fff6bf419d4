"""One replica slot of an agent: its phases as a table of transitions, and the figures that beats carry. Pure.

    down -> launching -> loading -> canary -> ready -> draining -> down

`draining` covers every way to an end that the agent ordered: it finishes work, was asked to stop, or was killed.
A step that dies by itself goes to `down` from wherever it was.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from exahpc.errors import StateError
from exahpc.wire.messages import ReplicaPhase, ReplicaState

Step = Literal["launch", "launched", "failed", "adopt", "hello", "answered", "end", "ended"]

TRANSITIONS: dict[tuple[ReplicaPhase, Step], ReplicaPhase] = {
    ("down", "launch"): "launching",
    ("down", "adopt"): "loading",
    ("launching", "launched"): "loading",
    ("launching", "failed"): "down",
    ("launching", "end"): "draining",
    ("loading", "hello"): "canary",
    ("loading", "end"): "draining",
    ("loading", "ended"): "down",
    ("canary", "hello"): "canary",
    ("canary", "answered"): "ready",
    ("canary", "end"): "draining",
    ("canary", "ended"): "down",
    ("ready", "hello"): "canary",  # the link was opened anew: the replica dropped its sequences
    ("ready", "end"): "draining",
    ("ready", "ended"): "down",
    ("draining", "launched"): "draining",  # the end was ordered while the launch was on its way
    ("draining", "failed"): "down",
    ("draining", "ended"): "down",
}

_STORY = 12  # transitions remembered for the message of a StateError
_SAMPLE_SECONDS = 1.0


@dataclass
class Slot:
    """Mutable state of one slot; only `core.AgentCore` changes it. All times are the agent's monotonic seconds."""

    number: int
    phase: ReplicaPhase = "down"
    incarnation: int = 0
    """Of the living step when `known`, else of the last one."""
    known: bool = False
    serving: bool = False
    """The relay may hold sequences of this replica."""
    due: float | None = 0.0
    """When to launch, while down; None: never again."""
    deadline: float | None = None
    """Until when the canary must have answered, or, once stopped, the step must have ended."""
    unlinked: float | None = None
    """Since when the replica's socket is lost."""
    killed: bool = False
    probing: bool = False
    deaths: deque[float] = field(default_factory=deque)
    restarts: int = 0
    story: str = ""
    busy: bool = False
    last_token: float = 0.0
    last_move: float = 0.0
    tokens: int = 0
    running: int = 0
    waiting: int = 0
    kv_free: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    steps: int = 0
    rate: float = 0.0
    idle: tuple[float, ...] = ()
    _sample: tuple[float, int] = (0.0, 0)
    _past: deque[str] = field(default_factory=lambda: deque(maxlen=_STORY))

    def step(self, step: Step, now: float) -> None:
        """Take one transition. Raises StateError with the slot's story when the table does not know it."""
        after = TRANSITIONS.get((self.phase, step))
        if after is None:
            raise StateError(
                f"slot {self.number} (incarnation {self.incarnation}) cannot take {step!r} while {self.phase!r}; "
                f"its story: {', '.join(self._past) or 'nothing yet'}"
            )
        self._past.append(f"{now:.3f} {self.phase} -{step}-> {after}")
        self.phase = after

    @property
    def living(self) -> bool:
        """A step exists, or is about to."""
        return self.phase != "down"

    def died(self, now: float, window: float) -> int:
        """Count one death; returns how many lie within the last `window` seconds."""
        self.deaths.append(now)
        while self.deaths and self.deaths[0] <= now - window:
            self.deaths.popleft()
        return len(self.deaths)

    def moved(self, now: float, tokens: int) -> None:
        self.last_move = now
        if tokens:
            self.last_token = now
            self.tokens += tokens

    def load(self, busy: bool, now: float) -> None:
        """Note whether work is in flight, and sample the token rate."""
        if busy and not self.busy:  # the clock of a stall starts with the work
            self.last_token = self.last_move = now
        self.busy = busy
        then, tokens = self._sample
        if now - then >= _SAMPLE_SECONDS:
            fresh = (self.tokens - tokens) / (now - then)
            self.rate = (self.rate + fresh) / 2
            self._sample = (now, self.tokens)

    def forgive(self, seconds: float) -> None:
        """Move all clocks of the step on: for so long nobody listened to it."""
        self.last_token += seconds
        self.last_move += seconds
        if self.unlinked is not None:
            self.unlinked += seconds
        if self.deadline is not None:
            self.deadline += seconds

    def stalled(self, now: float, stall_seconds: float) -> bool:
        """Work is in flight, and neither a token nor a step came for so long. Steps without a token (the prefill
        of a long prompt) count as life, but not for ever: a replica may also spin."""
        if not self.busy:
            return False
        return now - self.last_move > stall_seconds or now - self.last_token > 10 * stall_seconds

    def reset(self) -> None:
        """Forget what belonged to the last step."""
        self.known = self.serving = self.killed = self.probing = self.busy = False
        self.deadline = self.unlinked = None
        self.running = self.waiting = self.kv_free = self.steps = self.prefix_hits = self.preemptions = 0
        self.rate, self.idle = 0.0, ()

    def state(self, now: float) -> ReplicaState:
        return ReplicaState(
            slot=self.number,
            incarnation=self.incarnation,
            phase=self.phase,
            running=self.running,
            waiting=self.waiting,
            kv_free=self.kv_free,
            token_age=round(now - self.last_token, 3) if self.busy else 0.0,
            token_rate=round(self.rate, 2),
            tokens=self.tokens,
            restarts=self.restarts,
            story=self.story,
            idle=list(self.idle),
            prefix_hits=self.prefix_hits,
            preemptions=self.preemptions,
            step_age=round(now - self.last_move, 3) if self.busy else 0.0,
        )
