"""Laws of the agent's core."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from exahpc.agent.core import HAND_BACK_SECONDS, LINK_GRACE, AgentCore
from exahpc.agent.events import (
    Action,
    Adopted,
    Beat,
    CanaryEnded,
    CloseIntake,
    Drain,
    Ended,
    Event,
    Finish,
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
from exahpc.agent.leaving import KILL_GRACE, STOP_GRACE
from exahpc.agent.slot import TRANSITIONS
from exahpc.deployment.spec import Recovery
from exahpc.errors import StateError
from exahpc.wire.messages import DrainAgent, RestartReplica, Welcome

RECOVERY = Recovery(
    restarts=3, window_seconds=600, backoff_seconds=0.5, ready_seconds=100, stall_seconds=30, beat_seconds=2
)


def told(actions: list[Action]) -> list[Action]:
    """Actions without the news for the broker."""
    return [action for action in actions if not isinstance(action, Tell)]


def ready(core: AgentCore, slot: int, incarnation: int, now: float) -> list[Action]:
    """Bring a slot that is due from down to ready; the actions of the last step."""
    assert Launch(slot) in core.handle(Tick(), now)
    core.handle(Launched(slot, incarnation), now)
    assert Probe(slot, incarnation) in core.handle(Hello(slot, incarnation), now)
    return core.handle(CanaryEnded(slot, incarnation), now)


def phase(core: AgentCore, slot: int = 0) -> str:
    return core.slots[slot].phase


def test_a_replica_serves_only_after_its_canary_answered() -> None:
    core = AgentCore([0], RECOVERY)
    assert told(core.handle(Tick(), 0)) == [Launch(0)]
    core.handle(Launched(0, 1), 0)
    assert told(core.handle(Hello(0, 1), 1)) == [Probe(0, 1)]
    assert phase(core) == "canary"
    assert told(core.handle(CanaryEnded(0, 1), 2)) == [Serve(0, 1)]
    assert phase(core) == "ready"


def test_a_wrong_canary_answer_kills_the_step() -> None:
    core = AgentCore([0], RECOVERY)
    core.handle(Tick(), 0)
    core.handle(Launched(0, 1), 0)
    core.handle(Hello(0, 1), 1)
    killed = told(core.handle(CanaryEnded(0, 1, "2 of 4 tokens"), 2))
    assert killed == [Kill(0, 1, "canary failed: 2 of 4 tokens")]
    assert core.slots[0].story == "canary failed: 2 of 4 tokens"


def test_restarts_wait_twice_as_long_each_time_and_then_the_task_is_handed_back() -> None:
    core = AgentCore([0], RECOVERY)
    now = 0.0
    for number, wait in enumerate((0.5, 1.0, 2.0), 1):
        ready(core, 0, number, now)
        assert told(core.handle(Ended(0, number, "exit code 1", True), now)) == [Lost(0, True, "exit code 1")]
        assert told(core.handle(Tick(), now + wait - 0.01)) == []
        now += wait
    ready(core, 0, 4, now)
    last = told(core.handle(Ended(0, 4, "exit code 1", True), now))
    assert [type(action) for action in last] == [Lost, CloseIntake, Finish]
    finish = last[-1]
    assert isinstance(finish, Finish)
    assert (finish.code, finish.requeue, finish.suspect) == (75, True, True)
    assert "recovery.restarts = 3" in finish.reason
    assert "exit code 1" in finish.reason


@pytest.mark.parametrize(
    ("first", "second", "suspect"),
    [
        (Order(DrainAgent(1, 0.0, "ill again", requeue=True)), None, True),
        (Drain(0.0, "walltime", requeue=True), None, False),
        (Drain(9.0, "walltime", requeue=True), Order(DrainAgent(1, 0.0, "ill again", requeue=True)), True),
        (Order(DrainAgent(1, 9.0, "ill again", requeue=True)), Drain(0.0, "down", requeue=False), False),
    ],
)
def test_a_task_that_is_to_run_again_says_whether_because_of_its_node(
    first: Order | Drain, second: Order | Drain | None, suspect: bool
) -> None:
    core = AgentCore([0], RECOVERY)
    ready(core, 0, 1, 0.0)
    core.handle(first, 1.0)
    if second is not None:
        core.handle(second, 2.0)
    core.handle(Tick(), 3.0)
    (finish,) = [a for a in core.handle(Ended(0, 1, "exit code 0", False), 4.0) if isinstance(a, Finish)]
    assert finish.suspect is suspect


def test_deaths_outside_the_window_do_not_count() -> None:
    core = AgentCore([0], RECOVERY)
    now = 0.0
    for number in range(1, 20):
        ready(core, 0, number, now)
        core.handle(Ended(0, number, "x", True), now + 1)
        now += RECOVERY.window_seconds / 2
    assert phase(core) == "down"
    assert not core.draining


@pytest.mark.parametrize("own", [True, False])
def test_the_relay_learns_whether_a_replica_died_by_itself(own: bool) -> None:
    core = AgentCore([0], RECOVERY)
    ready(core, 0, 1, 0)
    assert Lost(0, own, "x" if own else "") in core.handle(Ended(0, 1, "x", own), 1)


def test_a_step_that_does_not_answer_in_time_is_killed() -> None:
    core = AgentCore([0], RECOVERY)
    core.handle(Tick(), 0)
    core.handle(Launched(0, 1), 0)
    assert told(core.handle(Tick(), RECOVERY.ready_seconds)) == []
    assert [type(a) for a in told(core.handle(Tick(), RECOVERY.ready_seconds + 1))] == [Kill]


def test_an_adopted_replica_that_had_been_ready_gets_a_short_time_only() -> None:
    core = AgentCore([0], RECOVERY)
    core.handle(Adopted(0, 7, was_ready=True), 0)
    assert told(core.handle(Tick(), 1)) == []  # adopted, so not launched
    assert [type(a) for a in told(core.handle(Tick(), RECOVERY.stall_seconds + 1))] == [Kill]


def test_work_without_a_token_for_stall_seconds_kills_and_moves_the_work() -> None:
    core = AgentCore([0], RECOVERY)
    ready(core, 0, 1, 0)
    core.handle(Tick(), 1000)  # idle for long: no stall
    assert phase(core) == "ready"
    core.handle(Tick(frozenset({0})), 1001)
    core.handle(Moved(0, 1, 1), 1020)
    assert told(core.handle(Tick(frozenset({0})), 1050)) == []
    actions = told(core.handle(Tick(frozenset({0})), 1051))
    assert [type(a) for a in actions] == [Lost, Kill]
    assert Lost(0, False) in actions
    assert "stalled" in core.slots[0].story


def test_steps_without_tokens_are_life_for_a_while_but_not_for_ever() -> None:
    core = AgentCore([0], RECOVERY)
    ready(core, 0, 1, 0)
    now = 0.0
    for step in range(1, 100):
        now = step * 10.0
        core.handle(Beat(0, 1, 1, 0, 10, step), now)
        core.handle(Tick(frozenset({0})), now)
        if phase(core) != "ready":
            break
    assert 10 * RECOVERY.stall_seconds < now < 11.5 * RECOVERY.stall_seconds


def test_idle_shares_are_told_as_the_last_beat_gave_them_and_end_with_the_step() -> None:
    core = AgentCore([0], RECOVERY)
    ready(core, 0, 1, 0)
    core.handle(Beat(0, 1, 1, 0, 10, 1, (0.25, 0.0)), 1)
    assert core.states(1)[0].idle == [0.25, 0.0]
    core.handle(Ended(0, 1, 1, "gone"), 2)
    assert core.states(2)[0].idle == []


def test_an_agent_that_slept_does_not_blame_its_replicas() -> None:
    core = AgentCore([0], RECOVERY)
    ready(core, 0, 1, 0)
    core.handle(Tick(frozenset({0})), 1)
    core.handle(LinkLost(0, 1), 2)
    assert told(core.handle(Tick(frozenset({0}), slept=500.0), 502)) == []
    assert [type(a) for a in told(core.handle(Tick(frozenset({0})), 506))] == [Lost, Kill]


def test_an_answer_from_before_the_link_was_lost_makes_nobody_ready() -> None:
    core = AgentCore([0], RECOVERY)
    core.handle(Tick(), 0)
    core.handle(Launched(0, 1), 0)
    core.handle(Hello(0, 1), 1)
    core.handle(LinkLost(0, 1), 2)
    assert core.handle(CanaryEnded(0, 1), 2) == []
    assert told(core.handle(Hello(0, 1), 3)) == [Probe(0, 1)]
    assert told(core.handle(CanaryEnded(0, 1), 4)) == [Serve(0, 1)]


def test_a_replica_that_dies_by_itself_while_it_drains_is_told_as_such() -> None:
    core = AgentCore([0], RECOVERY)
    ready(core, 0, 1, 0)
    core.handle(Drain(20, "down", False), 1)
    assert told(core.handle(Tick(frozenset({0})), 2)) == []
    lost = Lost(0, True, "exit code 1")
    assert told(core.handle(Ended(0, 1, "exit code 1", True), 3)) == [lost, Finish(0, "down", False)]


def test_a_lost_socket_waits_for_the_steps_end_then_kills() -> None:
    core = AgentCore([0], RECOVERY)
    ready(core, 0, 1, 0)
    core.handle(LinkLost(0, 1), 10)
    assert told(core.handle(Tick(), 10 + LINK_GRACE)) == []
    assert [type(a) for a in told(core.handle(Tick(), 10.1 + LINK_GRACE))] == [Lost, Kill]


def test_a_link_that_comes_back_means_a_new_canary_and_lost_work() -> None:
    core = AgentCore([0], RECOVERY)
    ready(core, 0, 1, 0)
    core.handle(LinkLost(0, 1), 10)
    assert told(core.handle(Hello(0, 1), 11)) == [Lost(0, False), Probe(0, 1)]
    assert told(core.handle(CanaryEnded(0, 1), 12)) == [Serve(0, 1)]
    assert not core.slots[0].deaths


def test_words_of_an_older_step_change_nothing() -> None:
    core = AgentCore([0], RECOVERY)
    ready(core, 0, 1, 0)
    core.handle(Ended(0, 1, "x", False), 1)
    ready(core, 0, 2, 10)
    before = core.states(11)
    for event in (Hello(0, 1), CanaryEnded(0, 1, "bad"), LinkLost(0, 1), Ended(0, 1, "x", True), Moved(0, 1, 5)):
        assert core.handle(event, 11) == []
    assert core.states(11) == before


def test_orders_of_an_older_broker_are_ignored() -> None:
    core = AgentCore([0], RECOVERY)
    ready(core, 0, 1, 0)
    core.handle(Order(Welcome(5, 2.0)), 1)
    assert core.handle(Order(Welcome(4, 2.0)), 2) == [Reconnect()]
    assert core.handle(Order(RestartReplica(4, 0, 1, "old")), 2) == []
    assert core.handle(Order(DrainAgent(4, 1.0, "old")), 2) == []
    assert (phase(core), core.draining, core.obeys(4), core.obeys(5)) == ("ready", False, False, True)


def test_a_restart_by_the_broker_names_its_incarnation_and_counts_like_any_death() -> None:
    core = AgentCore([0], RECOVERY)
    ready(core, 0, 1, 0)
    assert core.handle(Order(RestartReplica(1, 0, 9, "other")), 1) == []
    assert told(core.handle(Order(RestartReplica(1, 0, 1, "hot")), 1)) == [Lost(0, False), Kill(0, 1, "hot")]
    core.handle(Ended(0, 1, "signal SIGKILL", False), 2)
    assert told(core.handle(Tick(), 1 + RECOVERY.backoff_seconds)) == [Launch(0)]
    assert list(core.slots[0].deaths) == [1]
    assert core.slots[0].restarts == 1


def test_a_replica_that_the_broker_restarts_again_and_again_hands_the_task_back() -> None:
    core = AgentCore([0], RECOVERY)
    now = 0.0
    for incarnation in range(1, RECOVERY.restarts + 2):
        ready(core, 0, incarnation, now)
        actions = core.handle(Order(RestartReplica(1, 0, incarnation, "silent")), now)
        assert any(isinstance(a, CloseIntake) for a in actions) == (incarnation > RECOVERY.restarts)
        core.handle(Ended(0, incarnation, "signal SIGKILL", False), now)
        now += RECOVERY.backoff_seconds * 2**incarnation


def test_a_long_prompt_is_told_from_silence_by_the_age_of_the_last_step() -> None:
    core = AgentCore([0], RECOVERY)
    ready(core, 0, 1, 0)
    assert core.states(50.0)[0].step_age == 0  # nothing to do
    core.handle(Tick(frozenset({0})), 100.0)
    core.handle(Beat(0, 1, 1, 0, 100, steps=1), 103.0)
    state = core.states(104.0)[0]
    assert (state.token_age, state.step_age) == (4.0, 1.0)
    core.handle(Beat(0, 1, 1, 0, 100, steps=1), 105.0)  # a beat without a step is no sign of life
    assert core.states(106.0)[0].step_age == 3.0


def test_a_drain_lets_work_finish_then_stops_and_ends_with_0() -> None:
    core = AgentCore([0, 1], RECOVERY)
    core.handle(Tick(), 0)
    for slot in (0, 1):
        core.handle(Launched(slot, 1), 0)
        core.handle(Hello(slot, 1), 0)
        core.handle(CanaryEnded(slot, 1), 0)
    assert told(core.handle(Drain(20, "down", False), 10)) == [CloseIntake("down")]
    assert told(core.handle(Tick(frozenset({1})), 10.1)) == [Stop(0, 1)]
    assert told(core.handle(Ended(0, 1, "exit code 0", False), 11)) == []
    assert told(core.handle(Tick(), 12)) == [Stop(1, 1)]
    assert told(core.handle(Ended(1, 1, "exit code 0", False), 13)) == [Finish(0, "down", False)]


def test_work_that_outlives_the_drain_is_given_away_at_the_deadline() -> None:
    core = AgentCore([0], RECOVERY)
    ready(core, 0, 1, 0)
    core.handle(Drain(20, "walltime", True), 10)
    assert told(core.handle(Tick(frozenset({0})), 29.9)) == []
    assert told(core.handle(Tick(frozenset({0})), 30.0)) == [Lost(0, False), Stop(0, 1)]
    assert [type(a) for a in told(core.handle(Tick(), 30.1 + STOP_GRACE))] == [Kill]
    assert told(core.handle(Tick(), 30.0 + STOP_GRACE + KILL_GRACE)) == [Finish(75, "walltime", True)]


def test_what_is_not_ready_yet_is_killed_by_a_drain_even_while_launching() -> None:
    core = AgentCore([0, 1], RECOVERY)
    core.handle(Tick(), 0)
    core.handle(Launched(0, 1), 0)
    assert told(core.handle(Drain(20, "down", False), 1)) == [CloseIntake("down"), Kill(0, 1, "down")]
    assert told(core.handle(Launched(1, 1), 2)) == [Kill(1, 1, "down")]
    core.handle(Ended(0, 1, "x", False), 3)
    assert told(core.handle(Ended(1, 1, "x", False), 3)) == [Finish(0, "down", False)]


def test_end_for_good_wins_over_run_again() -> None:
    core = AgentCore([0], RECOVERY)
    ready(core, 0, 1, 0)
    core.handle(Drain(20, "walltime", True), 1)
    core.handle(Drain(20, "down", False), 2)
    core.handle(Tick(), 3)
    assert core.handle(Ended(0, 1, "x", False), 4)[-1] == Finish(0, "walltime", False)


def test_a_step_that_cannot_be_killed_hands_the_task_back() -> None:
    core = AgentCore([0], RECOVERY)
    ready(core, 0, 1, 0)
    core.handle(Order(RestartReplica(1, 0, 1, "hot")), 1)
    seen: list[Action] = []
    for second in range(2, 120):
        seen += core.handle(Tick(), float(second))
    assert any(isinstance(a, CloseIntake) and "cannot be killed" in a.reason for a in seen)
    assert isinstance(seen[-1], Finish)


@pytest.mark.parametrize("event", [Launched(0, 1), LaunchFailed(0, "x")])
def test_an_illegal_transition_raises_with_the_slots_story(event: Event) -> None:
    core = AgentCore([0], RECOVERY)
    ready(core, 0, 1, 0)
    with pytest.raises(StateError, match=r"slot 0.*canary -answered-> ready"):
        core.handle(event, 1)


def test_every_living_phase_can_end() -> None:
    phases = {before for before, _ in TRANSITIONS} | set(TRANSITIONS.values())
    for before in phases - {"down", "launching"}:
        assert TRANSITIONS[(before, "ended")] == "down"


class World(RuleBasedStateMachine):
    """The core against steps that launch, load, answer, hang, die and refuse to die, in any order."""

    SLOTS = (0, 1, 2)

    def __init__(self) -> None:
        super().__init__()
        self.core = AgentCore(self.SLOTS, RECOVERY)
        self.now = 100.0
        self.claimed = 0
        self.launching: set[int] = set()
        self.living: dict[int, int] = {}
        self.asked: set[tuple[int, int]] = set()
        self.answered: set[tuple[int, int]] = set()
        self.deaths: dict[int, list[float]] = {slot: [] for slot in self.SLOTS}
        self.drain_ends: float | None = None
        self.closed = False
        self.finished: Finish | None = None

    def feed(self, event: Event) -> None:
        for action in self.core.handle(event, self.now):
            self.perform(action)

    def perform(self, action: Action) -> None:
        assert self.finished is None, "nothing is done after the end"
        match action:
            case Launch(slot):
                assert slot not in self.living, "two living incarnations of a slot"
                assert slot not in self.launching
                assert not self.closed, "nothing is launched while draining"
                self.launching.add(slot)
            case Probe(slot, incarnation):
                assert self.living[slot] == incarnation
                self.asked.add((slot, incarnation))
            case Serve(slot, incarnation):
                assert (slot, incarnation) in self.answered, "ready without a canary answer"
                assert not self.closed
            case Kill(slot, incarnation, _) | Stop(slot, incarnation):
                assert self.living[slot] == incarnation
            case CloseIntake():
                self.closed = True
                ends = self.now + HAND_BACK_SECONDS + STOP_GRACE + KILL_GRACE
                self.drain_ends = ends if self.drain_ends is None else self.drain_ends
            case Finish():
                self.finished = action

    def pick(self, data: st.DataObject, among: set[int]) -> int:
        return data.draw(st.sampled_from(sorted(among)))

    alive = precondition(lambda self: self.finished is None)

    @initialize(data=st.data())
    def adopt(self, data: st.DataObject) -> None:
        for slot in self.SLOTS:
            if data.draw(st.booleans()):
                self.claimed += 1
                self.living[slot] = self.claimed
                self.feed(Adopted(slot, self.claimed, data.draw(st.booleans())))

    @alive
    @rule(seconds=st.sampled_from([0.05, 0.6, 3.0, 31.0, 101.0]), busy=st.frozensets(st.sampled_from(SLOTS)))
    def time_passes(self, seconds: float, busy: frozenset[int]) -> None:
        self.now += seconds
        self.feed(Tick(busy))

    @precondition(lambda self: self.finished is None and self.launching)
    @rule(data=st.data(), good=st.booleans())
    def launch_ends(self, data: st.DataObject, good: bool) -> None:
        slot = self.pick(data, self.launching)
        self.launching.discard(slot)
        if not good:
            self.deaths[slot].append(self.now)
            return self.feed(LaunchFailed(slot, "no"))
        self.claimed += 1
        self.living[slot] = self.claimed
        self.feed(Launched(slot, self.claimed))

    @precondition(lambda self: self.finished is None and self.living)
    @rule(data=st.data(), what=st.sampled_from(["hello", "lost", "token", "beat"]))
    def step_speaks(self, data: st.DataObject, what: str) -> None:
        slot = self.pick(data, set(self.living))
        incarnation = self.living[slot]
        match what:
            case "hello":
                self.answered.discard((slot, incarnation))
                self.feed(Hello(slot, incarnation))
            case "lost":
                self.feed(LinkLost(slot, incarnation))
            case "token":
                self.feed(Moved(slot, incarnation, 3))
            case "beat":
                self.feed(Beat(slot, incarnation, 1, 0, 10, 5))

    @precondition(lambda self: self.finished is None and self.living)
    @rule(data=st.data(), good=st.booleans())
    def canary_answers(self, data: st.DataObject, good: bool) -> None:
        slot = self.pick(data, set(self.living))
        key = (slot, self.living[slot])
        if key in self.asked:
            if good:
                self.answered.add(key)
            self.feed(CanaryEnded(*key, None if good else "wrong"))

    @precondition(lambda self: self.finished is None and self.living)
    @rule(data=st.data(), own=st.booleans())
    def step_ends(self, data: st.DataObject, own: bool) -> None:
        slot = self.pick(data, set(self.living))
        self.feed(Ended(slot, self.living.pop(slot), "gone", own))

    @precondition(lambda self: self.finished is None and self.claimed)
    @rule(data=st.data(), old=st.integers(0, 5))
    def stale_words(self, data: st.DataObject, old: int) -> None:
        slot = data.draw(st.sampled_from(self.SLOTS))
        if self.living.get(slot) != old:
            before = self.core.states(self.now)
            assert self.core.handle(Hello(slot, old), self.now) == []
            assert self.core.states(self.now) == before

    @precondition(lambda self: self.finished is not None)
    @rule()
    def rest(self) -> None:
        """After the end."""

    @alive
    @rule(seconds=st.sampled_from([0.0, 5.0, 20.0]), requeue=st.booleans())
    def drain(self, seconds: float, requeue: bool) -> None:
        bound = self.now + seconds + STOP_GRACE + KILL_GRACE
        self.drain_ends = bound if self.drain_ends is None else min(self.drain_ends, bound)
        self.feed(Drain(seconds, "told", requeue))

    @alive
    @rule(data=st.data(), epoch=st.integers(1, 4))
    def order(self, data: st.DataObject, epoch: int) -> None:
        slot = data.draw(st.sampled_from(self.SLOTS))
        known = self.core.epoch
        living = self.living.get(slot, 0)
        actions = self.core.handle(Order(RestartReplica(epoch, slot, living, "told")), self.now)
        if epoch < known:
            assert actions == []
        for action in actions:
            self.perform(action)
        assert self.core.epoch >= known

    @invariant()
    def every_drain_ends_within_its_bound(self) -> None:
        if self.drain_ends is not None and self.finished is None:
            before = self.now
            if before >= self.drain_ends:
                self.feed(Tick(frozenset(self.SLOTS)))
                assert self.finished is not None

    @invariant()
    def the_budget_is_respected(self) -> None:
        for slot in self.core.slots.values():
            recent = [at for at in slot.deaths if at > self.now - RECOVERY.window_seconds]
            if len(recent) > RECOVERY.restarts:
                assert self.closed

    @invariant()
    def phases_match_the_world(self) -> None:
        if self.finished is not None:
            return
        for number, slot in self.core.slots.items():
            assert (slot.phase == "down") == (number not in self.living and number not in self.launching)


World.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
test_any_order_of_events = World.TestCase
