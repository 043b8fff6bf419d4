"""Where a rollout stands, and which way it can go. Pure.

    event      idle, done, reverted   canary      judging     widening    done        reverting
    start      canary                 -           -           -           -           -
    ready      -                      judging     -           -           -           -           canary serves
    passed     -                      -           widening    -           -           -           judged good
    complete   -                      -           -           done        -           -           all tasks serve
    fail       -                      reverting   reverting   reverting   -           -           gate closed
    abort      -                      reverting   reverting   reverting   -           -           by command
    rollback   -                      -           -           -           reverting   -           by command
    back       -                      -           -           -           -           reverted

A version is a deployment file under a label; "" is the one of `exahpc up`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from exahpc.errors import StateError
from exahpc.wire.messages import RolloutPhase

Event = Literal["start", "ready", "passed", "complete", "fail", "abort", "rollback", "back"]

TRANSITIONS: dict[tuple[RolloutPhase, Event], RolloutPhase] = {
    ("idle", "start"): "canary",
    ("done", "start"): "canary",
    ("reverted", "start"): "canary",
    ("canary", "ready"): "judging",
    ("judging", "passed"): "widening",
    ("widening", "complete"): "done",
    ("canary", "fail"): "reverting",
    ("judging", "fail"): "reverting",
    ("widening", "fail"): "reverting",
    ("canary", "abort"): "reverting",
    ("judging", "abort"): "reverting",
    ("widening", "abort"): "reverting",
    ("done", "rollback"): "reverting",
    ("reverting", "back"): "reverted",
}

FORWARD: frozenset[RolloutPhase] = frozenset({"canary", "judging", "widening"})
"""Phases in which tasks are moved to the new version."""


class RolloutState(msgspec.Struct, frozen=True):
    """What must outlive a broker. since: when the phase began; tasks: keys of those that were assigned to `new`;
    moved: when the last of them was; story: why it stands where it stands; promoted: the operator judges."""

    phase: RolloutPhase = "idle"
    old: str = ""
    new: str = ""
    since: float = 0.0
    tasks: frozenset[str] = frozenset()
    moved: float = 0.0
    story: str = ""
    promoted: bool = False

    @property
    def changing(self) -> bool:
        return self.phase in FORWARD or self.phase == "reverting"

    @property
    def current(self) -> str:
        """The version in force: what tasks load that are assigned to none."""
        return self.new if self.phase == "done" else self.old

    def wanted(self, key: str) -> str:
        """The version that this task is to serve."""
        return self.new if self.phase == "done" or key in self.tasks else self.old

    def step(self, event: Event, now: float, story: str = "") -> RolloutState:
        """Take one transition. Raises StateError when the table does not know it."""
        after = TRANSITIONS.get((self.phase, event))
        if after is None:
            raise StateError(f"a rollout that is {self.phase} since {self.since:.0f} cannot take {event!r}")
        tasks = frozenset() if after == "reverted" else self.tasks
        return msgspec.structs.replace(self, phase=after, since=now, story=story, tasks=tasks)
