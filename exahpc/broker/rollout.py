"""Brings a deployment from one version to another, a few tasks first, and back when that was no good. Pure.

`versions` says where a rollout stands, `moving` who is on the way, `gates` judges, `shares` spreads the traffic.
What is wanted is compared with what is, once a second: nothing is lost with a message, an agent or a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from exahpc.broker.gates import Figures, Verdict
from exahpc.broker.moving import AWAY_SECONDS, Moving, Task, in_turn, may_move
from exahpc.broker.shares import spread
from exahpc.broker.values import AgentView, Decided, FleetAction, InForce, RolloutMoved, Switch
from exahpc.broker.versions import FORWARD, Event, RolloutState
from exahpc.deployment import policy
from exahpc.deployment.versions import named
from exahpc.errors import DeploymentError
from exahpc.wire.messages import RolloutCommand, RolloutStatus, Share, VersionStatus

AGAIN_SECONDS = 15.0  # before an agent is told once more what it does not do


class Rollout:
    """One deployment's rollouts, one at a time. Times in seconds of the fleet's clock."""

    def __init__(self, state: RolloutState, gates: policy.Rollout, headroom: float) -> None:
        """state: where an earlier broker left it; gates: of the new version's file; headroom: share of the room
        that load may not take."""
        self.state = self._journalled = state
        self.shares: list[Share] = []
        self._gates, self._headroom = gates, headroom
        self._figures = Figures(state.old, state.new)
        self._moving = Moving(gates.seconds, state.tasks if state.phase in FORWARD else (), self._due)
        self._moved: frozenset[str] = frozenset()  # in this tick
        self._told: dict[str, float] = {}
        self._progress = state.story
        self._in_force = state.current if state.phase == "idle" else None
        self._astray = True  # some agent may serve another version than it should

    # --- events ----------------------------------------------------------------------------------------------

    def start(self, version: str, gates: policy.Rollout, tasks: Sequence[Task], now: float) -> list[FleetAction]:
        """Begin with the canary. Raises DeploymentError when that cannot be."""
        before = self.state
        if before.changing:
            ways = "promote it, abort it, or wait" if before.phase in FORWARD else "wait"
            raise DeploymentError(f"the rollout to {named(before.new)} is {before.phase}: {ways} for its end")
        if version == before.current:
            raise DeploymentError(f"{named(version)} is in force already: there is nothing to change")
        serving = [task for task in in_turn(tasks) if task.ready]
        if not serving:
            raise DeploymentError("no task has a ready replica, so nothing could be compared: wait for one")
        self._gates, self._figures = gates, Figures(before.current, version)
        self._moving = Moving(gates.seconds, slowest=self._moving.slowest)
        self._figures.absorb(tasks)
        self.state = msgspec.structs.replace(
            before.step("start", now), old=before.current, new=version, tasks=frozenset(), promoted=False
        )
        count = max(1, round(gates.canary * len(tasks)))
        self._move(self._next([task.key for task in serving], tasks, 0, count), tasks, now)
        return self._actions(tasks, 0, now)

    def command(self, message: RolloutCommand, now: float) -> list[FleetAction]:
        """What the operator wants; done by the next ticks. Raises DeploymentError when that cannot be."""
        going = self.state.phase in FORWARD
        match message.command:
            case "promote" if going:
                self.state = msgspec.structs.replace(self.state, promoted=True)
            case "abort" if going:
                self._turn("abort", "aborted by command", now)
            case "rollback" if self.state.phase == "done":
                self._turn("rollback", "rolled back by command", now)
            case "rollback" if going:
                raise DeploymentError(f"the rollout is {self.state.phase} yet: abort it")
            case _:
                raise DeploymentError(f"there is nothing to {message.command}: {self._words()}")
        return [Decided(f"rollout to {named(self.state.new)}: {message.command} by command"), *self._journal()]

    def up(self, view: AgentView) -> None:
        """An agent said hello."""
        self._astray |= view.version != self.state.wanted(view.key)

    def tick(self, look: Callable[[], list[Task]], waiting: int, now: float) -> list[FleetAction]:
        """Call about once a second. look: at all tasks, asked for only while there is something to do; waiting:
        requests that no replica has yet."""
        if not self.state.changing and not self._astray:
            return []
        tasks = look()
        if self.state.changing:
            self._figures.absorb(tasks)
            why = self._moving.settle(tasks, self.state.wanted, now)
            if self.state.phase == "reverting":
                self._back(tasks, waiting, now)
            else:
                self._forward(tasks, why, waiting, now)
        return self._actions(tasks, waiting, now)

    # --- there and back --------------------------------------------------------------------------------------

    def _forward(self, tasks: list[Task], late: str, waiting: int, now: float) -> None:
        """late: why a task did not arrive in time."""
        state, gates = self.state, self._gates
        verdict = self._judge(tasks, now)
        on_the_way = f"{len(self._moving)} of {len(state.tasks)} tasks are not ready yet; " if self._moving else ""
        self._progress = on_the_way + verdict.why
        if late and len(self._moving.late) > gates.most_errors * len(state.tasks):
            self._turn("fail", late, now)
        elif verdict.word == "bad":
            self._turn("fail", verdict.why, now)
        elif state.phase == "canary":
            if not self._moving:
                self._turn("ready", verdict.why, now)
        elif state.phase == "judging":
            if verdict.word == "good":
                self._turn("passed", verdict.why, now)
            elif now - state.since > gates.seconds:
                self._turn("fail", f"not judged within rollout.seconds = {gates.seconds:g}: {verdict.why}", now)
        else:
            left = [task.key for task in in_turn(tasks) if task.key not in state.tasks]
            if left or self._moving:
                self._move(self._next(left, tasks, waiting), tasks, now)
            else:
                self._turn("complete", verdict.why, now)

    def _back(self, tasks: list[Task], waiting: int, now: float) -> None:
        state = self.state
        left = [task.key for task in in_turn(tasks) if task.key in state.tasks]
        late = now - state.moved > self._longest_drain + AWAY_SECONDS
        if left:
            self._move(self._next(left, tasks, waiting), tasks, now)
        elif late or not (self._moving or any(task.alive and task.version == state.new for task in tasks)):
            self._turn("back", state.story, now)

    def _judge(self, tasks: list[Task], now: float) -> Verdict:
        if self.state.promoted:
            return Verdict("good", "promoted by command")
        replicas = sum(task.ready for task in tasks if task.version == self.state.new)
        alone = not any(self.state.wanted(task.key) == self.state.old for task in tasks)
        return self._figures.judge(self._gates, replicas, alone=alone, now=now)

    def _turn(self, event: Event, story: str, now: float) -> None:
        self.state = self.state.step(event, now, story)
        self._progress = story
        if self.state.phase == "reverting":
            self._moving = Moving(self._gates.seconds, slowest=self._moving.slowest)

    def _next(self, left: list[str], tasks: Sequence[Task], waiting: int, most: int = 0) -> list[str]:
        """most: at once; default: `rollout.step`."""
        most = most or max(1, int(self._gates.step * len(tasks)))
        by_key = {task.key: task for task in tasks}
        return may_move(left, by_key, self._moving, most, self._load(tasks, waiting))

    def _load(self, tasks: Sequence[Task], waiting: int) -> float:
        """Sequences that room is needed for."""
        return (sum(task.load for task in tasks) + waiting) / (1 - self._headroom)

    def _move(self, keys: list[str], tasks: Sequence[Task], now: float) -> None:
        """To the new version, or away from it. Those without an agent change when they are back: nobody waits."""
        if not keys:
            return
        moved, assigned = frozenset(keys), self.state.tasks
        assigned = assigned - moved if self.state.phase == "reverting" else assigned | moved
        self.state = msgspec.structs.replace(self.state, tasks=assigned, moved=now)
        self._moving.add((task.key for task in tasks if task.key in moved and task.alive), self._due)
        self._moved |= moved

    # --- what follows ----------------------------------------------------------------------------------------

    def _actions(self, tasks: Sequence[Task], waiting: int, now: float) -> list[FleetAction]:
        """Journal first; then make every task what it is to be."""
        actions = self._journal()
        if self._in_force != self.state.current:
            self._in_force = self.state.current
            actions.append(InForce(self._in_force))
        moved, self._moved, self._astray = self._moved, frozenset(), False
        remaining = {task.version for task in tasks if task.ready and task.version == self.state.wanted(task.key)}
        for task in tasks:
            wanted = self.state.wanted(task.key)
            wrong = task.alive and task.version != wanted
            self._astray |= wrong
            if task.key in moved or (wrong and now - self._told.get(task.key, -AGAIN_SECONDS) >= AGAIN_SECONDS):
                self._told[task.key] = now
                actions.append(Switch(task.key, wanted, self._drain_seconds(task.version in remaining)))
        state = self.state
        settled = not state.changing and not self._astray
        self.shares = [] if settled else spread(state, self._gates, tasks, self._load(tasks, waiting))
        return actions

    @property
    def _due(self) -> float:
        """Until when tasks that were moved last must serve, whatever became of them."""
        return self.state.moved + self._longest_drain + self._gates.seconds

    @property
    def _longest_drain(self) -> float:
        return max(self._gates.drain_seconds, self._gates.seconds / 2)

    def _drain_seconds(self, remaining: bool) -> float:
        """Requests stay at the version that they began with: they get more time where no replica of it remains."""
        return self._gates.drain_seconds if remaining else self._longest_drain

    def _journal(self) -> list[FleetAction]:
        before, self._journalled = self._journalled, self.state
        if self.state == before:
            return []
        told: list[FleetAction] = [RolloutMoved(self.state)]
        if self.state.phase != before.phase:
            told.append(Decided(self._words()))
        return told

    # --- what others read ------------------------------------------------------------------------------------

    def _words(self) -> str:
        state = self.state
        if state.phase == "idle":
            return "no rollout has been made"
        story = f": {self._progress}" if self._progress else ""
        return f"the rollout from {named(state.old)} to {named(state.new)} is {state.phase}{story}"

    def notes(self) -> list[str]:
        """For `exahpc status`."""
        return [self._words()] if self.state.changing or self.state.phase == "reverted" else []

    def status(self, tasks: Sequence[Task], now: float) -> RolloutStatus:
        state = self.state
        versions = [] if state.phase == "idle" else [self._version(v, tasks) for v in (state.old, state.new)]
        since = now - state.since if state.since else 0.0
        return RolloutStatus(state.current, state.phase, since, len(tasks), self._progress, versions)

    def _version(self, version: str, tasks: Sequence[Task]) -> VersionStatus:
        counts, share = self._figures.of(version), 1.0 if version == self.state.current else 0.0
        return VersionStatus(
            version=version,
            tasks=sum(self.state.wanted(task.key) == version for task in tasks),
            ready=sum(task.ready for task in tasks if task.version == version),
            share=next((s.share for s in self.shares if s.version == version), share),
            served=counts.served,
            failed=counts.failed,
            odd=counts.odd,
            deaths=counts.deaths,
            ttft=self._figures.median(version, "ttft"),
            tbt=self._figures.median(version, "tbt"),
        )
