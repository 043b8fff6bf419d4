"""The agent's decisions: `(event, now) -> actions`, no input or output. `main` performs the actions.

What holds, whatever comes in whatever order (tests/unit/agent/test_agent_core.py):
a slot never has two living steps; a replica serves only after its canary answered; unordered ends count against
the restart budget, and a spent budget hands the task back; every drain ends within its bound; orders of a lower
epoch than the highest seen are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from exahpc.agent.events import (
    Action,
    Adopted,
    Beat,
    CanaryEnded,
    CloseIntake,
    Drain,
    Ended,
    Event,
    Hello,
    Kill,
    Launch,
    Launched,
    LaunchFailed,
    LinkLost,
    Lost,
    Moved,
    Order,
    Probe,
    Reconnect,
    Serve,
    Stop,
    Tell,
    Tick,
)
from exahpc.agent.leaving import EXIT_REQUEUE, KILL_GRACE, STOP_GRACE, Leaving
from exahpc.agent.slot import Slot
from exahpc.deployment.spec import Recovery
from exahpc.deployment.versions import named
from exahpc.wire.messages import DrainAgent, ReplicaState, RestartReplica, SwitchVersion, Welcome

LINK_GRACE = 3.0  # a lost socket is usually a dying step, whose end tells more: wait for it
OWN_SLEEP = 1.0  # an agent that heard nothing for longer must not blame its replicas for the silence
HAND_BACK_SECONDS = 10.0
UNKILLABLE_SECONDS = 30.0


class AgentCore:
    """State of one agent. Times are monotonic seconds.

    hand_back_code: exit code that gives this task another life: 75 where Slurm may requeue it, 0 where the broker
    (told by AgentGone) submits anew, 1 where only the supervisor can start it again.
    """

    def __init__(
        self,
        slots: Iterable[int],
        recovery: Recovery,
        *,
        hand_back_code: int = EXIT_REQUEUE,
        epoch: int = 0,
        version: str = "",
    ) -> None:
        """version: label of the deployment file that it serves."""
        self.slots = {number: Slot(number) for number in slots}
        self.epoch, self.version = epoch, version
        self._recovery = recovery
        self._hand_back_code = hand_back_code
        self._ending: Leaving | None = None
        self._finished = False

    @property
    def draining(self) -> bool:
        return self._ending is not None

    def obeys(self, epoch: int) -> bool:
        """Whether an order of this epoch counts."""
        return epoch >= self.epoch

    def states(self, now: float) -> list[ReplicaState]:
        return [slot.state(now) for slot in self.slots.values()]

    def handle(self, event: Event, now: float) -> list[Action]:
        """Raises StateError when the shell reports what cannot be (a defect)."""
        match event:
            case Tick():
                return self._tick(event, now)
            case Drain():
                return self._drain(event, now)
            case Order():
                return self._order(event, now)
            case Adopted() | Launched() | LaunchFailed():
                return self._born(event, now)
            case Hello() | CanaryEnded() | LinkLost() | Ended() | Moved() | Beat():
                slot = self.slots[event.slot]
                if event.incarnation != slot.incarnation or not slot.known:
                    return []  # the last words of an older step
                return self._lives(slot, event, now)
        assert_never(event)

    # --- a step comes, lives and goes ---------------------------------------------------------------------

    def _born(self, event: Adopted | Launched | LaunchFailed, now: float) -> list[Action]:
        slot = self.slots[event.slot]
        match event:
            case Adopted():
                slot.step("adopt", now)
                slot.incarnation, slot.known, slot.due = event.incarnation, True, None
                wait = self._recovery.stall_seconds if event.was_ready else self._recovery.ready_seconds
                slot.deadline = now + wait
                slot.story = "adopted"
                if self._ending is not None:
                    return self._end(slot, self._ending.reason, now)
                return [Tell(slot.number)]
            case Launched():
                slot.step("launched", now)
                slot.incarnation, slot.known = event.incarnation, True
                if slot.phase == "draining":
                    return self._kill(slot, slot.story, now)
                return [Tell(slot.number)]
            case LaunchFailed():
                ordered = slot.phase == "draining"
                slot.step("failed", now)
                slot.reset()
                slot.story = event.story
                return [Tell(slot.number), *self._after_end(slot, ordered, now)]
        assert_never(event)

    def _lives(
        self, slot: Slot, event: Hello | CanaryEnded | LinkLost | Ended | Moved | Beat, now: float
    ) -> list[Action]:
        match event:
            case Hello():
                return self._hello(slot, now)
            case CanaryEnded():
                return self._canary_ended(slot, event.problem, now)
            case LinkLost():
                slot.unlinked = now
                slot.probing = False
                return []
            case Moved():
                slot.moved(now, event.tokens)
                return []
            case Beat():
                if event.steps != slot.steps:
                    slot.moved(now, 0)
                slot.running, slot.waiting, slot.kv_free = event.running, event.waiting, event.kv_free
                slot.steps, slot.idle = event.steps, event.idle
                slot.prefix_hits, slot.preemptions = event.prefix_hits, event.preemptions
                return []
            case Ended():
                return self._ended(slot, event, now)
        assert_never(event)

    def _hello(self, slot: Slot, now: float) -> list[Action]:
        slot.unlinked = None
        actions: list[Action] = []
        if slot.serving:
            slot.serving = False
            actions.append(Lost(slot.number, own_exit=False))
        if slot.phase == "draining":
            return actions
        if slot.phase == "ready":
            slot.deadline = now + self._recovery.stall_seconds
        slot.step("hello", now)
        slot.probing = True
        return [*actions, Tell(slot.number), Probe(slot.number, slot.incarnation)]

    def _canary_ended(self, slot: Slot, problem: str | None, now: float) -> list[Action]:
        if slot.phase != "canary" or not slot.probing:
            return []
        slot.probing = False
        if problem is not None:
            return self._condemn(slot, f"canary failed: {problem}", now)
        slot.step("answered", now)
        slot.deadline, slot.serving, slot.busy = None, True, False
        return [Serve(slot.number, slot.incarnation), Tell(slot.number)]

    def _ended(self, slot: Slot, event: Ended, now: float) -> list[Action]:
        ordered = slot.phase == "draining"
        actions: list[Action] = []
        if slot.serving:  # then nobody had stopped or killed it, not even in a drain
            actions.append(Lost(slot.number, event.own_exit, event.story if event.own_exit else ""))
        slot.step("ended", now)
        slot.reset()
        if not ordered:
            slot.story = event.story
        return [*actions, Tell(slot.number), *self._after_end(slot, ordered, now)]

    def _after_end(self, slot: Slot, ordered: bool, now: float) -> list[Action]:
        """Plan the restart, hand the task back, or finish."""
        if not ordered and self._ending is None and (handing_back := self._died(slot, now)):
            return handing_back
        if self._ending is not None:
            slot.due = None
        return self._finish_when_down(now)

    def _died(self, slot: Slot, now: float) -> list[Action]:
        """Count a death and plan the restart; or hand the task back, where there were too many."""
        deaths = slot.died(now, self._recovery.window_seconds)
        slot.due = now + self._recovery.backoff_seconds * 2 ** (deaths - 1)
        if deaths <= self._recovery.restarts:
            return []
        reason = (
            f"slot {slot.number} ended {deaths} times within {self._recovery.window_seconds:g} s, "
            f"more than recovery.restarts = {self._recovery.restarts}; last: {slot.story}"
        )
        return self._drain(Drain(HAND_BACK_SECONDS, reason, requeue=True, suspect=True), now)

    def _condemn(self, slot: Slot, story: str, now: float) -> list[Action]:
        """Kill a step that is no good. It counts as a death, but not as the replica's own exit: the end that
        follows was ordered."""
        actions = self._end(slot, story, now)
        return actions if self._ending is not None else [*actions, *self._died(slot, now)]

    def _end(self, slot: Slot, reason: str, now: float) -> list[Action]:
        """Order the end of a living step at once, whatever it does."""
        actions: list[Action] = []
        if slot.serving:
            slot.serving = False
            actions.append(Lost(slot.number, own_exit=False))
        launching = slot.phase == "launching"
        if slot.phase != "draining":
            slot.step("end", now)
            actions.append(Tell(slot.number))
        slot.story = reason
        return actions if launching else [*actions, *self._kill(slot, reason, now)]

    def _kill(self, slot: Slot, reason: str, now: float) -> list[Action]:
        slot.killed, slot.deadline = True, now + KILL_GRACE
        return [Kill(slot.number, slot.incarnation, reason)]

    # --- time ---------------------------------------------------------------------------------------------

    def _tick(self, event: Tick, now: float) -> list[Action]:
        actions: list[Action] = []
        for slot in self.slots.values():
            if event.slept > OWN_SLEEP:
                slot.forgive(event.slept)
            slot.load(slot.number in event.busy, now)
            actions += self._tick_slot(slot, now)
        return actions + self._finish_when_down(now)

    def _tick_slot(self, slot: Slot, now: float) -> list[Action]:
        match slot.phase:
            case "down":
                if slot.due is None or now < slot.due or self._ending is not None:
                    return []
                slot.step("launch", now)
                slot.restarts += slot.incarnation > 0
                slot.due, slot.deadline = None, now + self._recovery.ready_seconds
                return [Tell(slot.number), Launch(slot.number)]
            case "launching":
                return []  # the shell always answers
            case "loading" | "canary" | "ready":
                problem = self._problem(slot, now)
                return [] if problem is None else self._condemn(slot, problem, now)
            case "draining":
                return self._tick_draining(slot, now)
        assert_never(slot.phase)

    def _problem(self, slot: Slot, now: float) -> str | None:
        if slot.deadline is not None and now > slot.deadline:
            return f"no canary answer in time: still {slot.phase} (recovery.ready_seconds, recovery.stall_seconds)"
        if slot.phase != "loading" and slot.unlinked is not None and now - slot.unlinked > LINK_GRACE:
            return f"its socket was lost for {LINK_GRACE:g} s while the step lived on"
        if slot.phase == "ready" and slot.stalled(now, self._recovery.stall_seconds):
            return (
                f"stalled: work in flight but no token for {now - slot.last_token:.1f} s "
                f"(recovery.stall_seconds = {self._recovery.stall_seconds:g})"
            )
        return None

    def _tick_draining(self, slot: Slot, now: float) -> list[Action]:
        if slot.serving:
            if self._ending is None:  # not reachable: only a drain of the agent leaves a draining slot serving
                return self._end(slot, slot.story, now)
            late = now >= self._ending.deadline
            if late or not slot.busy:
                slot.serving = False
                slot.deadline = now + STOP_GRACE
                lost: list[Action] = [Lost(slot.number, own_exit=False)] if slot.busy else []
                return [*lost, Stop(slot.number, slot.incarnation)]
            if slot.stalled(now, self._recovery.stall_seconds):
                return self._end(slot, "stalled while draining", now)
            return []
        if not slot.known or slot.deadline is None or now <= slot.deadline:
            return []
        if not slot.killed:
            return self._kill(slot, "did not stop in time", now)
        if self._ending is None and now > slot.deadline + UNKILLABLE_SECONDS:
            reason = f"slot {slot.number} cannot be killed ({slot.story}): this node is suspect"
            return self._drain(Drain(HAND_BACK_SECONDS, reason, requeue=True, suspect=True), now)
        return []

    # --- the end of the agent -----------------------------------------------------------------------------

    def _drain(self, event: Drain, now: float) -> list[Action]:
        if self._ending is not None:
            self._ending.merge(event, now)
            return []
        self._ending = Leaving.of(event, now)
        actions: list[Action] = [CloseIntake(event.reason)]
        for slot in self.slots.values():
            match slot.phase:
                case "down":
                    slot.due = None
                case "draining":
                    pass
                case "ready":
                    slot.step("end", now)
                    actions.append(Tell(slot.number))
                case "launching" | "loading" | "canary":
                    actions += self._end(slot, event.reason, now)
        return actions + self._finish_when_down(now)

    def _finish_when_down(self, now: float) -> list[Action]:
        ending = self._ending
        if ending is None or self._finished:
            return []
        if any(slot.living for slot in self.slots.values()) and now < ending.last:
            return []
        self._finished = True
        return [ending.finish(self._hand_back_code)]

    def _order(self, event: Order, now: float) -> list[Action]:
        message = event.message
        if not self.obeys(message.epoch):
            return [Reconnect()] if isinstance(message, Welcome) else []
        self.epoch = message.epoch
        match message:
            case Welcome():
                return []
            case DrainAgent():
                # the broker has a task run again only because of its node
                order = Drain(message.seconds, message.reason, message.requeue, suspect=message.requeue)
                return self._drain(order, now)
            case SwitchVersion():
                if message.version == self.version:
                    return []
                reason = f"switching to {named(message.version)}"
                return self._drain(Drain(message.seconds, reason, requeue=False, again=True), now)
            case RestartReplica():
                slot = self.slots.get(message.slot)
                if slot is None or slot.incarnation != message.incarnation or self._ending is not None:
                    return []
                if slot.phase not in ("loading", "canary", "ready"):
                    return []
                return self._condemn(slot, message.reason, now)
        assert_never(message)
