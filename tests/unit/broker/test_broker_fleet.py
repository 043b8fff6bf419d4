"""The laws of the fleet table."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from exahpc.broker.fleet import CARRY_SECONDS, STAYED_SECONDS, Fleet
from exahpc.broker.memory import Agent, Memory
from exahpc.broker.values import Changed, Down, Ignored, Superseded, Tell, Up
from exahpc.deployment.spec import Deployment, Model, Pool, Recovery
from exahpc.wire import messages as m

BEAT = 2.0
LOST = 4 * BEAT


def deployment(tasks: int = 3, per_task: int = 2) -> Deployment:
    return Deployment(
        name="t",
        model=Model(path="/m"),
        pool=(Pool(name="a", replicas=tasks * per_task, replicas_per_task=per_task, max_sequences=8),),
        recovery=Recovery(beat_seconds=BEAT),
    )


def hello(
    task: int,
    incarnation: int = 1,
    phase: m.ReplicaPhase = "ready",
    *,
    node: str = "n",
    epoch: int = 0,
    replica: int = 1,
    leases: tuple[int, ...] = (),
) -> m.AgentHello:
    replicas = [m.ReplicaState(slot, replica, phase) for slot in (2 * task, 2 * task + 1)]
    return m.AgentHello(
        "a", task, incarnation, node, f"tcp://{node}:{incarnation}", f"9_{task}", 0, epoch, replicas, list(leases)
    )


def beat(*replicas: m.ReplicaState) -> m.AgentBeat:
    return m.AgentBeat(1, list(replicas))


def routes(fleet: Fleet) -> dict[str, set[tuple[int, int]]]:
    fleet.table()
    return {f"{a.pool}/{a.task}": {(r.slot, r.incarnation) for r in a.replicas} for a in fleet.current().agents}


def of(kind: type[Any], actions: list[Any]) -> list[Any]:
    return [action for action in actions if isinstance(action, kind)]


def memory_of(*histories: list[Any]) -> Memory:
    memory = Memory()
    for actions in histories:
        for change in of(Changed, actions):
            memory.apply(Agent.of(change.view, change.route, 0.0))
    return memory


def test_only_ready_replicas_route_with_their_capacity() -> None:
    fleet = Fleet(deployment(), 1, 0.0)
    fleet.hello(b"p", hello(0, phase="canary"), 0.0)
    assert routes(fleet) == {}
    fleet.beat(b"p", beat(m.ReplicaState(1, 1, "ready")), 1.0)
    assert routes(fleet) == {"a/0": {(1, 1)}}
    assert fleet.current().agents[0].replicas == [m.Route(1, 1, 8, 1.0)]


@pytest.mark.parametrize("phase", ["down", "launching", "loading", "canary", "draining"])
def test_a_replica_that_leaves_ready_leaves_the_table(phase: m.ReplicaPhase) -> None:
    fleet = Fleet(deployment(), 1, 0.0)
    fleet.hello(b"p", hello(0), 0.0)
    fleet.beat(b"p", beat(m.ReplicaState(0, 1, phase)), 1.0)
    assert routes(fleet) == {"a/0": {(1, 1)}}


def test_an_agent_is_lost_after_four_missed_beats_and_not_before() -> None:
    fleet = Fleet(deployment(), 1, 0.0)
    fleet.hello(b"p", hello(0), 0.0)
    actions: list[Any] = []
    for second in range(1, 9):
        actions += fleet.tick(float(second))
    assert not actions
    assert of(Down, fleet.tick(LOST + 0.5)) == [Down("a/0", "no beat for 8 s")]
    assert routes(fleet) == {}
    assert fleet.tick(LOST + 1.5) == [], "told once"


def test_a_lost_agent_that_is_heard_again_routes_again_without_a_new_hello() -> None:
    fleet = Fleet(deployment(), 1, 0.0)
    fleet.hello(b"p", hello(0), 0.0)
    for second in range(12):
        fleet.tick(float(second))
    assert routes(fleet) == {}
    actions = fleet.beat(b"p", beat(), 12.0)
    assert [(up.view.key, up.fresh) for up in of(Up, actions)] == [("a/0", False)]
    assert of(Changed, actions)[0].view.phase == "alive"
    assert routes(fleet) == {"a/0": {(0, 1), (1, 1)}}


def test_a_broker_that_was_itself_stopped_declares_nobody_lost_before_it_has_listened() -> None:
    fleet = Fleet(deployment(), 1, 0.0)
    fleet.hello(b"p", hello(0), 0.0)
    fleet.tick(1.0)
    assert fleet.tick(60.0) == []
    fleet.beat(b"p", beat(), 60.1)
    for second in range(61, 69):
        assert fleet.tick(float(second)) == []
    assert of(Down, [a for s in range(70, 75) for a in fleet.tick(float(s))])


def test_a_new_incarnation_replaces_the_old_one_whose_messages_are_dropped() -> None:
    fleet = Fleet(deployment(), 1, 0.0)
    fleet.hello(b"old", hello(0, 1), 0.0)
    actions = fleet.hello(b"new", hello(0, 2, replica=2), 1.0)
    assert [type(a) for a in actions][:1] == [Down], "its leases are free before the new one is greeted"
    assert of(Up, actions)[0].fresh
    assert fleet.beat(b"old", beat(m.ReplicaState(0, 9, "down")), 2.0) == []
    assert fleet.gone(b"old", m.AgentGone("bye", False), 2.0) == []
    assert routes(fleet) == {"a/0": {(0, 2), (1, 2)}}
    assert fleet.key_of(b"old") is None
    assert fleet.key_of(b"new") == "a/0"


def test_an_older_incarnation_is_not_let_in_and_is_told_to_end_when_it_is_elsewhere() -> None:
    fleet = Fleet(deployment(), 1, 0.0)
    fleet.hello(b"new", hello(0, 2, node="n2"), 0.0)
    elsewhere = fleet.hello(b"old", hello(0, 1, node="n1"), 1.0)
    assert [tell.message.seconds for tell in of(Tell, elsewhere)] == [0.0]
    beside = fleet.hello(b"old", hello(0, 1, node="n2"), 1.0)
    assert [type(action) for action in beside] == [Ignored], "the newer agent may have adopted its steps"
    assert fleet.peer_of("a/0") == b"new"


def test_states_of_older_replica_incarnations_and_of_foreign_slots_are_dropped() -> None:
    fleet = Fleet(deployment(), 1, 0.0)
    fleet.hello(b"p", hello(0, replica=3), 0.0)
    fleet.beat(b"p", beat(m.ReplicaState(0, 2, "down"), m.ReplicaState(4, 1, "ready")), 1.0)
    assert routes(fleet) == {"a/0": {(0, 3), (1, 3)}}


def test_a_hello_of_a_task_that_is_not_wanted_is_ignored() -> None:
    fleet = Fleet(deployment(tasks=1), 1, 0.0)
    assert [type(action) for action in fleet.hello(b"p", hello(1), 0.0)] == [Ignored]
    assert routes(fleet) == {}


def test_the_version_grows_only_when_routes_change() -> None:
    fleet = Fleet(deployment(), 1, 0.0)
    first = fleet.table()
    assert first is not None
    assert (first.version, first.agents) == (1, [])
    fleet.hello(b"p", hello(0), 0.0)
    second = fleet.table()
    assert second is not None
    assert second.version == 2
    fleet.beat(b"p", beat(m.ReplicaState(0, 1, "ready", running=5, tokens=99)), 1.0)
    fleet.hello(b"q", hello(0), 2.0)  # the same agent on a new connection
    assert fleet.table() is None
    fleet.beat(b"q", beat(m.ReplicaState(0, 1, "down")), 3.0)
    fleet.beat(b"q", beat(m.ReplicaState(0, 1, "ready")), 3.0)
    assert fleet.table() is None, "there and back between two tables is no change"
    assert fleet.current().version == 2


def test_an_agent_that_knows_a_higher_epoch_ends_this_broker() -> None:
    fleet = Fleet(deployment(), 4, 0.0)
    assert not of(Superseded, fleet.hello(b"p", hello(0, epoch=4), 0.0))
    assert of(Superseded, fleet.hello(b"p", hello(0, epoch=5), 0.0))[0].epoch == 5


def test_a_good_bye_takes_the_routes_and_no_hello_of_the_same_incarnation_brings_them_back() -> None:
    fleet = Fleet(deployment(), 1, 0.0)
    fleet.hello(b"p", hello(0), 0.0)
    actions = fleet.gone(b"p", m.AgentGone("budget spent", True, suspect=True), 1.0)
    view = of(Changed, actions)[0].view
    assert (view.phase, view.handed_back, view.suspect, view.reason) == ("gone", True, True, "budget spent")
    assert of(Down, actions)
    assert [type(action) for action in fleet.hello(b"q", hello(0), 2.0)] == [Ignored]
    assert routes(fleet) == {}
    fleet.hello(b"r", hello(0, 2), 3.0)
    assert routes(fleet) == {"a/0": {(0, 1), (1, 1)}}


def test_a_draining_fleet_routes_nothing_and_tells_also_those_who_come_later() -> None:
    fleet = Fleet(deployment(), 1, 0.0)
    fleet.hello(b"p", hello(0), 0.0)
    told = of(Tell, fleet.drain(30.0, "down", 10.0))
    assert [(tell.peer, tell.message) for tell in told] == [(b"p", m.DrainAgent(1, 30.0, "down"))]
    late = of(Tell, fleet.hello(b"q", hello(1), 20.0))
    assert late[-1].message == m.DrainAgent(1, 20.0, "down")
    assert routes(fleet) == {"a/0": set(), "a/1": set()}, "what runs there is not lost"


@pytest.mark.parametrize(("moved", "seconds"), [(True, CARRY_SECONDS), (False, STAYED_SECONDS)])
def test_a_restarted_broker_keeps_the_routes_of_agents_it_has_not_heard_yet(moved: bool, seconds: float) -> None:
    before = Fleet(deployment(), 1, 0.0)
    memory = memory_of(before.hello(b"p", hello(0), 0.0), before.hello(b"q", hello(1), 0.0))
    after = Fleet(deployment(), 2, 100.0, memory.carried(), moved=moved)
    both = {"a/0": {(0, 1), (1, 1)}, "a/1": {(2, 1), (3, 1)}}
    assert routes(after) == both
    assert after.expected == 2
    after.hello(b"p", hello(0), 101.0)
    assert routes(after) == both
    assert of(Changed, after.beat(b"p", beat(m.ReplicaState(0, 1, "down")), 102.0))
    assert routes(after) == {"a/0": {(1, 1)}, "a/1": {(2, 1), (3, 1)}}
    lost: list[Any] = []
    for second in range(101, 140):
        after.beat(b"p", beat(), float(second))
        lost += [(second, down.key) for down in of(Down, after.tick(float(second)))]
    assert lost == [(100 + int(seconds), "a/1")]
    assert routes(after) == {"a/0": {(1, 1)}}


def test_a_restarted_broker_does_not_carry_those_who_were_lost_or_gone() -> None:
    before = Fleet(deployment(), 1, 0.0)
    first = before.hello(b"p", hello(0), 0.0)
    second = before.hello(b"q", hello(1), 0.0)
    bye = before.gone(b"p", m.AgentGone("walltime", True), 1.0)
    lost = [action for s in range(1, 12) for action in before.tick(float(s))]
    after = Fleet(deployment(), 2, 100.0, memory_of(first, second, bye, lost).carried())
    assert (routes(after), after.expected) == ({}, 0)
    phases = {view.key: (view.phase, view.handed_back) for view in after.absent()}
    assert phases == {"a/0": ("gone", True), "a/1": ("lost", False), "a/2": ("unheard", False)}


def test_an_old_incarnation_is_refused_also_by_the_next_broker() -> None:
    before = Fleet(deployment(), 1, 0.0)
    memory = memory_of(before.hello(b"p", hello(0, 5), 0.0))
    after = Fleet(deployment(), 2, 1.0, memory.carried())
    assert of(Ignored, after.hello(b"q", hello(0, 4), 2.0))


def test_a_lowered_weight_reaches_the_table_and_ends_with_its_replica() -> None:
    fleet = Fleet(deployment(), 1, 0.0)
    fleet.hello(b"p", hello(0), 0.0)
    fleet.weigh("a/0", 1, 1, 0.25)
    fleet.table()
    assert [route.weight for route in fleet.current().agents[0].replicas] == [1.0, 0.25]
    fleet.beat(b"p", beat(m.ReplicaState(1, 2, "ready")), 1.0)
    fleet.table()
    assert [route.weight for route in fleet.current().agents[0].replicas] == [1.0, 1.0]


def test_an_agent_that_is_expected_keeps_its_routes_whatever_is_said_of_it_but_a_drain() -> None:
    memory = memory_of(Fleet(deployment(), 1, 0.0).hello(b"p", hello(0), 0.0))
    after = Fleet(deployment(), 2, 1.0, memory.carried())
    after.weigh("a/0", 0, 1, 0.5)
    assert routes(after) == {"a/0": {(0, 1), (1, 1)}}
    after.drain(30.0, "down", 2.0)
    assert routes(after) == {}


def test_a_quiet_fleet_has_no_absent_agent_to_look_at_and_no_table_to_make() -> None:
    fleet = Fleet(deployment(), 1, 0.0)
    for task in range(3):
        fleet.hello(bytes([task]), hello(task), 0.0)
    fleet.table()
    assert all(fleet.beat(bytes([task]), beat(), 1.0) == [] for task in range(3))
    assert (list(fleet.absent()), fleet.dirty, fleet.alive) == ([], False, 3)


PHASES = st.sampled_from(["down", "launching", "loading", "canary", "ready", "draining"])


class FleetMachine(RuleBasedStateMachine):
    """Any order of events; the model knows, for each task, its newest agent and that one's replicas."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.epoch = 1
        self.fleet = Fleet(deployment(), 1, 0.0)
        self.memory = Memory()
        self.peers = 0
        self.model: dict[int, dict[str, Any]] = {}
        self.last: m.FleetTable = self.fleet.table() or pytest.fail("the first table")

    def note(self, actions: list[Any]) -> None:
        for change in of(Changed, actions):
            self.memory.apply(Agent.of(change.view, change.route, self.now))

    @rule(task=st.integers(0, 2), phase=PHASES)
    def starts(self, task: int, phase: m.ReplicaPhase) -> None:
        known = self.model.get(task)
        incarnation = known["incarnation"] + 1 if known else 1
        self.peers += 1
        peer = b"%d" % self.peers
        self.model[task] = {
            "incarnation": incarnation,
            "peer": peer,
            "heard": self.now,
            "there": True,
            "phases": {2 * task: phase, 2 * task + 1: phase},
        }
        self.note(self.fleet.hello(peer, hello(task, incarnation, phase, replica=incarnation), self.now))

    @precondition(lambda self: self.model)
    @rule(data=st.data(), phase=PHASES)
    def beats(self, data: st.DataObject, phase: m.ReplicaPhase) -> None:
        task = data.draw(st.sampled_from(sorted(self.model)))
        known = self.model[task]
        if known["peer"] is None or not known["there"]:
            return
        known["phases"][2 * task], known["heard"] = phase, self.now
        state = m.ReplicaState(2 * task, known["incarnation"], phase)
        self.note(self.fleet.beat(known["peer"], beat(state), self.now))

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def says_good_bye(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(sorted(self.model)))
        known = self.model[task]
        if known["peer"] is not None and known["there"]:
            known["there"] = False
            self.note(self.fleet.gone(known["peer"], m.AgentGone("bye", False), self.now))

    @rule(seconds=st.integers(1, 12))
    def time_passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1.0
            self.note(self.fleet.tick(self.now))

    @rule()
    def broker_restarts(self) -> None:
        self.epoch += 1
        self.fleet = Fleet(deployment(), self.epoch, self.now, self.memory.carried())
        first = self.fleet.table()
        assert first is not None
        assert first.agents == self.last.agents, "a new broker begins with the routes of the old one"
        self.last = first
        for task, known in self.model.items():
            if not known["there"]:
                continue
            silent = self.now - known["heard"] > LOST
            self.peers += 1
            known["peer"] = None if silent else b"%d" % self.peers
            if not silent:
                known["heard"] = self.now
                message = hello(task, known["incarnation"])
                states = [m.ReplicaState(s, known["incarnation"], p) for s, p in known["phases"].items()]
                message = m.AgentHello(*[getattr(message, f) for f in message.__struct_fields__[:8]], states, [])
                self.note(self.fleet.hello(known["peer"], message, self.now))

    @invariant()
    def table_tells_the_truth(self) -> None:
        table = self.fleet.table()
        if table is not None:
            assert table.agents != self.last.agents
            assert table.version == self.last.version + 1
            self.last = table
        told = {(a.task, a.incarnation, r.slot) for a in self.last.agents for r in a.replicas}
        true = {
            (task, known["incarnation"], slot)
            for task, known in self.model.items()
            if known["there"] and known["peer"] is not None and self.now - known["heard"] <= LOST
            for slot, phase in known["phases"].items()
            if phase == "ready"
        }
        assert told == true


FleetMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestFleetMachine = FleetMachine.TestCase
