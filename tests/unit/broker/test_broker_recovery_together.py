"""Many losses at once: switches, pauses by chance, shares of loads, alerts; what is parked, woken, succeeded."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exahpc.broker.limits import Allowance, Limits, loads_at_once
from exahpc.broker.memory import Memory
from exahpc.broker.recovery import Act, Recovery
from exahpc.broker.switches import Dark
from exahpc.broker.values import AgentPhase, AgentView
from exahpc.broker.verdict import PATIENCE
from exahpc.deployment.spec import Deployment, Model, Pool
from exahpc.deployment.spec import Recovery as Keys
from exahpc.slurm.api import JobRecord, JobState

LEAVES = {f"n{node}": f"leaf{node // 8}" for node in range(64)}


def view(task: int, phase: AgentPhase = "lost", since: float = 100.0) -> AgentView:
    return AgentView(f"a/{task}", "a", task, phase, since, 1, f"n{task}", f"7_{task}")


class Fleet:
    """64 tasks, one a node, eight nodes a switch; Slurm takes all jobs for running."""

    def __init__(self, tasks: int = 64, limits: Limits | None = None) -> None:
        made = Deployment(
            name="t",
            model=Model(path="/m"),
            pool=(Pool(name="a", replicas=tasks),),
            recovery=Keys(ready_seconds=600.0),
        )
        self.tasks = tasks
        self.recovery = Recovery(made, Memory(), 0.0, limits=limits, dice=lambda: 0.0)
        self.recovery.network.learn(LEAVES)
        for task in range(tasks):
            self.recovery.up(f"a/{task}", f"7_{task}", f"n{task}")
        self.states: dict[int, JobState] = {}
        self.jobs = 8
        self.now = 50.0
        self.ask()
        self.now = 100.0
        self.absent: list[AgentView] = []
        self.heirs: set[str] = set()
        self.acts: list[tuple[float, Act]] = []

    def run(self, seconds: float) -> list[Act]:
        first = len(self.acts)
        until = self.now + seconds
        while self.now < until:
            self.now += 1.0
            if self.recovery.query_due(self.now, True):
                self.ask()
            for act in self.recovery.decide(self.absent, self.now, self.heirs):
                self.acts.append((self.now, act))
                self.jobs += 1
                self.recovery.done(act.key, act.kind, f"{self.jobs}_{act.key[2:]}", "", self.now)
        return [act for _, act in self.acts[first:]]

    def ask(self) -> None:
        records = {}
        for task in range(self.tasks):
            job, state = self.recovery.job(f"a/{task}"), self.states.get(task, "running")
            nodes = (f"n{task}",) if state == "running" else ()
            records[job] = JobRecord(job, state, state.upper(), "", nodes)
        self.recovery.answered(records, self.now)

    def comes_up(self, key: str) -> None:
        self.recovery.up(key, self.recovery.job(key), f"n{key[2:]}")
        self.absent = [away for away in self.absent if away.key != key]


def test_agents_that_fall_silent_with_their_switch_are_given_more_time_and_kept_off_all_of_it() -> None:
    fleet = Fleet()
    fleet.absent = [view(task) for task in range(8)]
    assert fleet.run(PATIENCE.dark - 1) == []
    assert fleet.recovery.alerts() == ["switch leaf0: 8 agents fell silent together"]
    assert "switch leaf0: 8 agents fell silent together" in fleet.recovery.notes()
    acts = fleet.run(60)
    assert {act.key for act in acts} == {f"a/{task}" for task in range(8)}
    assert all(set(act.exclude) == {f"n{node}" for node in range(8)} for act in acts)
    assert fleet.recovery.alerts() == [], "told once"


def test_a_switch_that_comes_back_costs_nothing() -> None:
    fleet = Fleet()
    fleet.absent = [view(task) for task in range(8)]
    fleet.run(PATIENCE.dark - 20)
    fleet.absent = []
    assert fleet.run(300) == []
    assert fleet.recovery.notes() == []


def test_single_losses_on_many_switches_are_single_losses() -> None:
    fleet = Fleet()
    fleet.absent = [view(task) for task in (0, 8, 16, 24)]
    acts = fleet.run(PATIENCE.hung + 15)
    assert {act.suspect for act in acts} == {"n0", "n8", "n16", "n24"}


@given(st.dictionaries(st.sampled_from(sorted(LEAVES)), st.booleans()))
def test_a_switch_is_dark_exactly_when_half_of_ours_there_and_three_are_silent(silent: dict[str, bool]) -> None:
    """silent: our nodes, and whether they are."""
    dark = Dark(LEAVES, silent, [node for node, is_silent in silent.items() if is_silent])
    for node, is_silent in silent.items():
        beside = [other for other in silent if LEAVES[other] == LEAVES[node]]
        lost = [other for other in beside if silent[other]]
        expected = is_silent and len(lost) >= 3 and 2 * len(lost) >= len(beside)
        assert (node in dark) is expected
        assert dark.beside(node) == (tuple(sorted(lost)) if expected else ())


def test_what_broke_together_is_not_tried_together_again() -> None:
    dice = random.Random(1)
    limits = Limits(burst=100, backoff=10.0, longest=600.0)
    allowance = Allowance(limits, {}, 0.0, dice.random)
    keys = [f"a/{task}" for task in range(50)]
    for key in keys:
        allowance.spend(key, 0.0)

    def first(key: str) -> float:
        return next(now for now in itertools.count(0.0, 0.1) if allowance.refusal(key, now) is None)

    ready = [first(key) for key in keys]
    assert all(10 <= when <= 15.2 for when in ready)
    assert len(set(ready)) > 25


def test_a_task_whose_budget_is_spent_is_told_once_and_noted_until_it_is_back() -> None:
    fleet = Fleet(limits=Limits(tries=2, backoff=1.0, burst=10))
    fleet.absent = [view(3)]
    fleet.states = {3: "failed"}
    fleet.run(600)
    assert len(fleet.acts) == 2
    (alert,) = fleet.recovery.alerts()
    assert "a/3 is given up after 2 rebuilds" in alert
    assert fleet.recovery.notes() == ["given up for now, 1 of 64 tasks: a/3"]
    fleet.comes_up("a/3")
    assert fleet.recovery.notes() == []


def test_rebuilt_tasks_load_in_shares_and_the_next_begin_when_those_are_ready() -> None:
    fleet = Fleet(limits=Limits(burst=64, refill_seconds=0.01))
    fleet.absent = [view(task, "gone") for task in range(30)]
    fleet.states = dict.fromkeys(range(30), "failed")
    fleet.run(60)
    most = loads_at_once(64)
    assert len(fleet.acts) == most == 8
    assert "waits until fewer than 8 rebuilt tasks load" in fleet.recovery.story("a/29")
    for _, act in fleet.acts:
        del fleet.states[int(act.key[2:])]
        fleet.comes_up(act.key)
    assert fleet.run(60) == []
    for _, act in fleet.acts[:3]:
        fleet.recovery.loaded(act.key)
    assert len(fleet.run(10)) == 3


def test_rebuilt_tasks_that_wait_in_the_queue_do_not_count_as_loading() -> None:
    fleet = Fleet(limits=Limits(burst=64, refill_seconds=0.01))
    fleet.absent = [view(task, "gone") for task in range(30)]
    fleet.states = dict.fromkeys(range(30), "failed")
    fleet.run(25)
    for _, act in list(fleet.acts):
        fleet.states[int(act.key[2:])] = "pending"
    fleet.run(200)
    assert len(fleet.acts) > 8


@pytest.mark.parametrize("tasks", [1, 32, 256, 3072])
def test_the_share_of_loads_follows_the_size(tasks: int) -> None:
    assert loads_at_once(tasks) == max(4, tasks // 8)


def test_a_task_whose_successor_is_under_way_is_left_to_it() -> None:
    fleet = Fleet()
    fleet.absent, fleet.heirs = [view(3)], {"a/3"}
    assert fleet.run(300) == []
    assert "successor is under way" in fleet.recovery.story("a/3")
    fleet.recovery.promote("a/3", "12_3", fleet.now)
    fleet.heirs, fleet.states = set(), {3: "pending"}
    assert fleet.run(300) == []
    assert fleet.recovery.job("a/3") == "12_3"
    assert "12" in fleet.recovery.arrays()
    fleet.recovery.up("a/3", "7_3", "n3")
    assert fleet.recovery.job("a/3") == "12_3", "the old job does not tell where the task lives"


def test_a_woken_task_is_submitted_at_once_and_costs_none_of_its_tries() -> None:
    fleet = Fleet(limits=Limits(tries=1, backoff=600.0, burst=10))
    fleet.states = {3: "completed"}
    for _ in range(3):
        fleet.absent = []
        fleet.run(30)
        fleet.absent = [view(3, "gone", fleet.now)]
        fleet.recovery.wake("a/3")
        assert [act.kind for act in fleet.run(2)] == ["resubmit"]
        fleet.comes_up("a/3")


def test_a_woken_task_that_slurm_still_holds_is_not_submitted_beside_it() -> None:
    fleet = Fleet()
    fleet.states = {3: "pending"}
    fleet.run(30)
    fleet.absent = [view(3, "gone", fleet.now)]
    fleet.recovery.wake("a/3")
    assert fleet.run(60) == []


def test_a_parked_task_that_waits_in_the_queue_is_cancelled_once() -> None:
    fleet = Fleet()
    fleet.states = {3: "pending"}
    fleet.run(30)
    acts = fleet.recovery.surplus([view(3, "gone")], fleet.now)
    assert [(act.kind, act.job) for act in acts] == [("cancel", "7_3")]
    assert fleet.recovery.surplus([view(3, "gone")], fleet.now) == []
    fleet.recovery.done("a/3", "cancel", "7_3", "", fleet.now)
    fleet.states = {3: "failed"}
    fleet.run(30)
    assert fleet.recovery.surplus([view(3, "gone")], fleet.now) == []


def test_a_site_that_tells_no_switches_is_one_failure_domain_and_status_says_so() -> None:
    fleet = Fleet()
    assert fleet.recovery.notes() == []
    fleet.recovery.network.learn({})
    assert fleet.recovery.notes() == [
        "Slurm tells of no switches or blocks: all nodes count as one failure domain"
    ]
    fleet.absent = [view(task) for task in range(32)]  # half of that domain: one event
    assert fleet.run(300) == []
    fleet.absent = fleet.absent[:8]  # an eighth may be single losses, and nobody can tell
    assert len(fleet.run(300)) == 8
