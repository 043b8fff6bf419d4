"""The laws of a task with two lives: its current agent, and the successor that takes over."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from exahpc.broker.fleet import Fleet
from exahpc.broker.memory import Agent, Heir, Memory
from exahpc.broker.values import Changed, Coming, Down, Lapsed, Loaded, Retired, Tell, Up
from exahpc.deployment.policy import Walltime
from exahpc.deployment.spec import Deployment, Model, Pool, Recovery
from exahpc.wire import messages as m

BEAT = 2.0
DRAIN = 45.0
OLD, NEW = b"old", b"new"


def deployment(tasks: int = 2) -> Deployment:
    return Deployment(
        name="t",
        model=Model(path="/m"),
        pool=(Pool(name="a", replicas=2 * tasks, replicas_per_task=2, max_sequences=8),),
        recovery=Recovery(beat_seconds=BEAT),
        walltime=Walltime(drain_seconds=DRAIN),
    )


def hello(job: str, incarnation: int, phase: m.ReplicaPhase = "ready", *, task: int = 0) -> m.AgentHello:
    replicas = [m.ReplicaState(slot, incarnation, phase) for slot in (2 * task, 2 * task + 1)]
    address = f"tcp://n{job}:{incarnation}"
    return m.AgentHello("a", task, incarnation, f"n{job}", address, f"{job}_{task}", 0, 0, replicas, [])


def beat(phase: m.ReplicaPhase, incarnation: int, slots: tuple[int, ...] = (0, 1)) -> m.AgentBeat:
    return m.AgentBeat(1, [m.ReplicaState(slot, incarnation, phase) for slot in slots])


def routes(fleet: Fleet) -> dict[tuple[int, int], int]:
    """(task, incarnation of the agent) -> its serving replicas."""
    fleet.table()
    return {(a.task, a.incarnation): len(a.replicas) for a in fleet.current().agents}


def of(kind: type[Any], actions: list[Any]) -> list[Any]:
    return [action for action in actions if isinstance(action, kind)]


def drains(actions: list[Any]) -> list[tuple[bytes, float, bool]]:
    return [
        (tell.peer, tell.message.seconds, tell.message.requeue)
        for tell in of(Tell, actions)
        if isinstance(tell.message, m.DrainAgent)
    ]


def overlapping(phase: m.ReplicaPhase = "loading") -> Fleet:
    """Task 0 serves from job 1; its successor in job 2 has just come."""
    fleet = Fleet(deployment(), 1, 0.0)
    fleet.hello(OLD, hello("1", 1), 0.0)
    actions = fleet.hello(NEW, hello("2", 2, phase), 10.0)
    if phase == "loading":
        assert [action.view.job for action in of(Coming, actions)] == ["2_0"]
        assert not of(Up, actions)
        assert not of(Down, actions)
    return fleet


def test_what_an_agent_reports_while_it_leaves_is_heard() -> None:
    fleet = overlapping()
    assert not fleet.leaving("a/0")
    assert of(Down, fleet.beat(NEW, beat("ready", 2), 20.0))
    assert fleet.leaving("a/0")
    assert (fleet.reporter_of(OLD), fleet.key_of(OLD)) == ("a/0", None)
    fleet.gone(OLD, m.AgentGone("drained", False), 30.0)
    assert not fleet.leaving("a/0")
    assert fleet.reporter_of(OLD) is None


def test_a_successor_is_welcomed_and_loads_while_the_current_agent_serves() -> None:
    fleet = overlapping()
    assert routes(fleet) == {(0, 1): 2}
    assert fleet.key_of(NEW) is None, "it gets no batch rows yet"
    assert fleet.peer_of("a/0") == OLD
    assert fleet.alive == 2
    assert fleet.nodes == 2


def test_the_task_is_handed_over_when_the_successor_serves_as_much() -> None:
    fleet = overlapping()
    assert of(Up, fleet.beat(NEW, beat("ready", 2, (0,)), 20.0)) == []
    assert routes(fleet) == {(0, 1): 2}
    actions = fleet.beat(NEW, beat("ready", 2, (1,)), 30.0)
    assert drains(actions) == [(OLD, DRAIN, False)], "it drains, and is not to be run again"
    assert [type(a) for a in actions if not isinstance(a, Tell)] == [Loaded, Down, Retired, Changed, Up, Changed]
    assert of(Loaded, actions)[0].seconds == 20.0
    assert of(Retired, actions) == [Retired("a/0", "1_0")]
    assert of(Changed, actions)[-1].view.job == "2_0"
    assert routes(fleet) == {(0, 1): 0, (0, 2): 2}, "what runs on the old one is not lost"
    assert fleet.key_of(NEW) == "a/0"
    assert [type(a) for a in fleet.gone(OLD, m.AgentGone("drained", False), 40.0)] == [Changed]
    assert routes(fleet) == {(0, 2): 2}
    assert fleet.alive == 1


def test_a_successor_that_comes_ready_takes_over_at_once() -> None:
    assert routes(overlapping("ready")) == {(0, 1): 0, (0, 2): 2}


def test_a_current_agent_with_a_replica_down_is_succeeded_by_as_many_as_it_has() -> None:
    fleet = overlapping()
    fleet.beat(OLD, beat("down", 1, (1,)), 11.0)
    assert of(Up, fleet.beat(NEW, beat("ready", 2, (0,)), 20.0))
    assert routes(fleet) == {(0, 1): 0, (0, 2): 1}


@pytest.mark.parametrize("end", ["gone", "lost", "warned"])
def test_when_the_current_agent_ends_first_the_successor_stands_in_for_it_at_once(end: str) -> None:
    fleet = overlapping()
    match end:
        case "gone":
            actions = fleet.gone(OLD, m.AgentGone("walltime", True), 12.0)
        case "warned":
            actions = fleet.beat(OLD, beat("draining", 1), 12.0)
            assert drains(actions) == [(OLD, DRAIN, False)], "one life is enough: it must not come back"
        case _:
            actions = []
            for second in range(13):
                fleet.beat(NEW, beat("loading", 2), float(second))
                actions += fleet.tick(float(second))
    assert [up.view.job for up in of(Up, actions)] == ["2_0"]
    assert "a/0" not in [view.key for view in fleet.absent()]
    fleet.beat(NEW, beat("ready", 2), 14.0)
    assert routes(fleet)[(0, 2)] == 2


def test_a_successor_that_falls_silent_or_ends_leaves_the_current_agent_alone() -> None:
    for ends in ("silent", "gone"):
        fleet = overlapping()
        if ends == "gone":
            actions: list[Any] = fleet.gone(NEW, m.AgentGone("no weights", True), 12.0)
        else:
            actions = []
            for second in range(10, 23):
                fleet.beat(OLD, beat("ready", 1), float(second))
                actions += fleet.tick(float(second))
        assert [lapsed.view.job for lapsed in of(Lapsed, actions)] == ["2_0"]
        assert not of(Down, actions)
        assert routes(fleet) == {(0, 1): 2}


def test_an_agent_that_is_restarted_in_its_own_job_replaces_its_own_life_only() -> None:
    fleet = overlapping()
    fleet.hello(b"old2", hello("1", 3, "canary"), 11.0)
    fleet.hello(b"new2", hello("2", 4, "loading"), 11.0)
    fleet.beat(b"old2", beat("ready", 3), 12.0)
    assert routes(fleet) == {(0, 3): 2}
    assert routes(fleet) == {(0, 3): 2}
    fleet.beat(b"new2", beat("ready", 4), 13.0)
    assert routes(fleet) == {(0, 3): 0, (0, 4): 2}


def test_a_second_successor_takes_the_place_of_the_first() -> None:
    fleet = overlapping()
    actions = fleet.hello(b"third", hello("3", 3, "loading"), 12.0)
    assert drains(actions) == [(NEW, 0.0, False)]
    assert [lapsed.view.job for lapsed in of(Lapsed, actions)] == ["2_0"]
    assert fleet.alive == 2


def test_an_old_one_that_shows_up_again_is_told_to_end() -> None:
    fleet = overlapping("ready")
    fleet.gone(OLD, m.AgentGone("drained", False), 20.0)
    for incarnation in (1, 3):  # the same process, or one that Slurm ran once more
        again = fleet.hello(b"again", hello("1", incarnation), 30.0)
        assert drains(again) == [(b"again", 0.0, False)]
        assert not of(Up, again)
    assert routes(fleet) == {(0, 2): 2}
    later = Fleet(deployment(), 2, 40.0, retired=["1_0"])
    later.hello(NEW, hello("2", 2), 41.0)
    assert drains(later.hello(b"again", hello("1", 3), 42.0)), "a restarted broker knows it too"


def test_a_leaving_agent_that_reconnects_keeps_its_place_until_it_is_gone() -> None:
    fleet = overlapping("ready")
    again = fleet.hello(b"again", hello("1", 1, "draining"), 12.0)
    assert drains(again)
    assert routes(fleet) == {(0, 1): 0, (0, 2): 2}
    fleet.gone(b"again", m.AgentGone("drained", False), 20.0)
    assert routes(fleet) == {(0, 2): 2}


def test_a_restarted_broker_holds_the_successor_until_it_has_heard_the_current_agent_or_given_it_up() -> None:
    memory = Memory()
    for change in of(Changed, Fleet(deployment(), 1, 0.0).hello(OLD, hello("1", 1), 0.0)):
        memory.apply(Agent.of(change.view, change.route, 0.0))
    fleet = Fleet(deployment(), 2, 100.0, memory.carried())
    fleet.hello(NEW, hello("2", 2), 101.0)
    assert routes(fleet) == {(0, 1): 2}
    actions: list[Any] = []
    for second in range(102, 125):
        fleet.beat(NEW, beat("ready", 2), float(second))
        actions += fleet.tick(float(second))
    assert of(Up, actions)
    assert routes(fleet) == {(0, 2): 2}


def test_a_restarted_broker_holds_a_successor_that_came_before_the_current_agent_was_restarted() -> None:
    fleet = overlapping()
    memory = Memory()
    for change in of(Changed, fleet.hello(b"old2", hello("1", 3), 20.0)):
        memory.apply(Agent.of(change.view, change.route, 20.0))
    memory.apply(Heir(at=20.0, key="a/0", job="2_0"))
    for first in ("current", "successor"):
        fleet = Fleet(deployment(), 2, 30.0, memory.carried(), heirs=memory.successors())
        said = [(b"old2", hello("1", 3)), (NEW, hello("2", 2, "loading"))]
        actions: list[Any] = []
        for peer, message in said if first == "current" else reversed(said):
            actions += fleet.hello(peer, message, 31.0)
        assert not drains(actions)
        assert routes(fleet) == {(0, 3): 2}
        fleet.beat(NEW, beat("ready", 2), 40.0)
        assert routes(fleet) == {(0, 3): 0, (0, 2): 2}


def test_a_successor_that_took_over_is_current_as_any_other() -> None:
    fleet = overlapping("ready")
    fleet.hello(b"new2", hello("2", 4), 11.0)
    assert not of(Up, fleet.hello(NEW, hello("2", 3), 12.0)), "an older process of its job"
    assert routes(fleet)[(0, 4)] == 2


def test_a_successor_that_comes_after_the_current_agent_was_lost_stands_in_whenever_it_began() -> None:
    memory = Memory()
    for change in of(Changed, Fleet(deployment(), 1, 0.0).hello(OLD, hello("1", 3), 0.0)):
        memory.apply(Agent.of(change.view, change.route, 0.0))
    memory.apply(Heir(at=0.0, key="a/0", job="2_0"))
    fleet = Fleet(deployment(), 2, 0.0, memory.carried(), heirs=memory.successors())
    for second in range(30):
        fleet.tick(float(second))
    assert drains(fleet.hello(b"stray", hello("3", 2), 30.0)), "an old life"
    assert not drains(fleet.hello(NEW, hello("2", 2), 30.0))
    assert routes(fleet) == {(0, 2): 2}


def test_a_restarted_broker_keeps_the_place_of_an_agent_that_leaves() -> None:
    first = Fleet(deployment(), 1, 0.0)
    actions: list[Any] = first.hello(OLD, hello("1", 1), 0.0) + first.hello(NEW, hello("2", 2), 10.0)

    def restarted() -> Fleet:
        memory = Memory()
        for change in of(Changed, actions):
            memory.apply(Agent.of(change.view, change.route, 0.0))
        again = Memory()
        for record in memory.records(20.0):
            again.apply(record)
        return Fleet(deployment(), 2, 20.0, again.carried(), ["1_0"])

    fleet = restarted()
    assert routes(fleet) == routes(first) == {(0, 1): 0, (0, 2): 2}
    fleet.hello(b"a", hello("1", 1, "draining"), 21.0)
    assert routes(fleet) == {(0, 1): 0, (0, 2): 2}
    fleet = restarted()
    for second in range(20, 42):
        fleet.tick(float(second))
    assert routes(fleet) == {}, "neither was heard"
    actions += first.gone(OLD, m.AgentGone("drained", False), 30.0)
    assert routes(restarted()) == {(0, 2): 2}


# --- parked tasks --------------------------------------------------------------------------------------------


def test_a_parked_task_drains_and_nobody_misses_it() -> None:
    fleet = overlapping()
    assert fleet.wanted == 4
    actions = fleet.park("a/0", 30.0, "not needed", 12.0)
    assert drains(actions) == [(OLD, 30.0, False), (NEW, 30.0, False)]
    assert of(Changed, actions)[0].view.parked
    assert routes(fleet) == {(0, 1): 0}
    assert fleet.wanted == 2
    fleet.gone(NEW, m.AgentGone("drained", False), 13.0)
    fleet.gone(OLD, m.AgentGone("drained", False), 13.0)
    assert "a/0" not in [view.key for view in fleet.absent()]
    assert [view.key for view in fleet.surplus()] == ["a/0"]
    late = fleet.hello(b"late", hello("3", 3, "loading"), 20.0)
    assert drains(late) == [(b"late", 0.0, False)], "it was on its way"


def test_an_unparked_task_is_missed_again_and_serves_when_it_comes() -> None:
    fleet = Fleet(deployment(), 1, 0.0)
    fleet.park("a/0", 0.0, "not needed", 0.0)
    fleet.unpark("a/0", 5.0)
    assert ("a/0", 5.0) in [(view.key, view.since) for view in fleet.absent()]
    fleet.hello(OLD, hello("1", 1), 6.0)
    assert routes(fleet) == {(0, 1): 2}


def test_a_restarted_broker_knows_what_is_parked() -> None:
    memory = Memory()
    for change in of(Changed, Fleet(deployment(), 1, 0.0).park("a/0", 0.0, "not needed", 0.0)):
        memory.apply(Agent.of(change.view, change.route, 0.0))
    fleet = Fleet(deployment(), 2, 100.0, memory.carried())
    assert fleet.parked("a/0")
    assert [view.key for view in fleet.absent()] == ["a/1"]


def test_an_order_goes_to_the_current_agent_only() -> None:
    fleet = overlapping()
    message = m.RestartReplica(1, 0, 1, "silent")
    assert fleet.order("a/0", message) == [Tell(OLD, message)]
    assert fleet.order("a/1", message) == []


class Lives(RuleBasedStateMachine):
    """One task, any number of jobs that come, go, fall silent and are restarted in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.fleet = Fleet(deployment(1), 1, 0.0)
        self.now = 0.0
        self.living: dict[bytes, m.AgentHello] = {}  # by connection
        self.incarnation = 0
        self.peers = 0
        self.told: set[bytes] = set()  # to drain

    def perform(self, actions: list[Any]) -> None:
        self.told |= {peer for peer, _, _ in drains(actions)}

    def say_hello(self, job: str, phase: m.ReplicaPhase) -> None:
        self.incarnation += 1
        self.peers += 1
        peer = b"%d" % self.peers
        for other in [p for p, message in self.living.items() if message.job == f"{job}_0"]:
            del self.living[other]  # one process a job
        self.living[peer] = hello(job, self.incarnation, phase)
        self.perform(self.fleet.hello(peer, self.living[peer], self.now))

    @rule(job=st.sampled_from("1234"), phase=st.sampled_from(["loading", "ready"]))
    def comes(self, job: str, phase: m.ReplicaPhase) -> None:
        self.say_hello(job, phase)

    @precondition(lambda self: self.living)
    @rule(data=st.data(), phase=st.sampled_from(["ready", "down", "draining"]))
    def changes(self, data: st.DataObject, phase: m.ReplicaPhase) -> None:
        peer = data.draw(st.sampled_from(sorted(self.living)))
        said = self.living[peer]
        replicas = [msgspec.structs.replace(state, phase=phase) for state in said.replicas]
        self.living[peer] = msgspec.structs.replace(said, replicas=replicas)
        self.perform(self.fleet.beat(peer, m.AgentBeat(1, replicas), self.now))

    @precondition(lambda self: self.living)
    @rule(data=st.data())
    def goes(self, data: st.DataObject) -> None:
        peer = data.draw(st.sampled_from(sorted(self.living)))
        del self.living[peer]
        self.perform(self.fleet.gone(peer, m.AgentGone("bye", False), self.now))

    @rule(data=st.data(), seconds=st.integers(1, 30))
    def time_passes(self, data: st.DataObject, seconds: int) -> None:
        silent = data.draw(st.sets(st.sampled_from(sorted(self.living)))) if self.living else set()
        for _ in range(seconds):
            self.now += 1.0
            for peer in self.living.keys() - silent:
                self.perform(self.fleet.beat(peer, m.AgentBeat(1, []), self.now))
            self.perform(self.fleet.tick(self.now))
        for peer in silent:
            del self.living[peer]

    @invariant()
    def one_agent_serves_at_most_and_it_is_the_one_that_is_listened_to(self) -> None:
        serving = [key for key, count in routes(self.fleet).items() if count]
        assert len(serving) <= 1
        assert len(self.fleet.current().agents) <= 2
        peer = self.fleet.peer_of("a/0")
        if serving and peer in self.living:
            assert self.living[peer].incarnation == serving[0][1]

    @rule()
    def after_a_quiet_while_whoever_can_serve_does(self) -> None:
        for _ in range(15):
            self.now += 1.0
            for peer in self.living:
                self.perform(self.fleet.beat(peer, m.AgentBeat(1, []), self.now))
            self.perform(self.fleet.tick(self.now))
        able = {
            said.incarnation
            for peer, said in self.living.items()
            if peer not in self.told and all(state.phase == "ready" for state in said.replicas)
        }
        serving = {incarnation for (_, incarnation), count in routes(self.fleet).items() if count}
        assert serving & able or not able


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
