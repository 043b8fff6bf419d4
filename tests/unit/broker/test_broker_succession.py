"""When a successor is submitted, what becomes of it, and what never happens."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exahpc.broker.leads import DOUBLED, PRIOR_LOAD, PRIOR_WAIT, WARNING, in_advance
from exahpc.broker.learned import KEPT, Learned, high
from exahpc.broker.lineage import Cancel, Promote, Succeed
from exahpc.broker.memory import Agent, Heir, Memory, Sample
from exahpc.broker.succession import RETRY_SECONDS, Succession
from exahpc.broker.values import AgentPhase, AgentView
from exahpc.broker.verdict import PATIENCE
from exahpc.deployment.policy import Successors, Walltime
from exahpc.deployment.spec import Deployment, Model, Pool, SlurmResources
from exahpc.slurm.api import JobRecord, JobState

HOURS = 3600.0
LIMIT = 4 * HOURS
MARGIN = 300.0  # the most, at this limit
LEAD = WARNING + PRIOR_WAIT + PRIOR_LOAD + MARGIN


def deployment(
    tasks: int = 1, mode: Successors = "auto", time: str = "4:00:00", most: float = HOURS
) -> Deployment:
    return Deployment(
        name="t",
        model=Model(path="/m"),
        pool=(Pool(name="a", replicas=tasks),),
        slurm=SlurmResources(time=time),
        walltime=Walltime(successors=mode, most_lead_seconds=most),
    )


def view(
    job: str = "1", *, until: float = LIMIT, task: int = 0, phase: AgentPhase = "alive", **more: Any
) -> AgentView:
    return AgentView(
        f"a/{task}", "a", task, phase, more.pop("since", 0.0), job=f"{job}_{task}", until=until, **more
    )


def running(job: str, end: float = 0.0, state: JobState = "running", raw: str = "RUNNING") -> dict[str, JobRecord]:
    return {job: JobRecord(job, state, raw, "", ("n",), 0, end)}


class Story:
    """A succession that is asked once a second; submissions get jobs 100, 101, ..."""

    def __init__(
        self, made: Deployment | None = None, memory: Memory | None = None, now: float = LIMIT - 2400
    ) -> None:
        self.succession = Succession(made or deployment(), memory or Memory(), now)
        self.now = now
        self.acts: list[tuple[float, Any]] = []
        self.absent: list[AgentView] = []
        self.parked: set[str] = set()
        self.refuse = ""
        self.frozen = False
        self.jobs = 100

    def run(self, until: float) -> list[Any]:
        first = len(self.acts)
        while self.now < until:
            self.now += 1.0
            for act in self.succession.decide(self.absent, self.parked, self.now, frozen=self.frozen):
                self.acts.append((self.now, act))
                if isinstance(act, Succeed):
                    job = "" if self.refuse else f"{self.jobs}_{act.key[2:]}"
                    self.jobs += 1
                    self.succession.submitted(act.key, job, self.refuse, self.now)
        return [act for _, act in self.acts[first:]]

    def answered(self, records: dict[str, JobRecord]) -> None:
        self.now += 1.0
        self.succession.answered(records, self.now, self.now)

    def times(self, kind: type[Any]) -> list[float]:
        return [when for when, act in self.acts if isinstance(act, kind)]


def fresh(**more: Any) -> Story:
    story = Story(**more)
    story.succession.up(view(), 0.0)
    return story


def pending() -> Story:
    """Task 0 lives in job 1 until LIMIT; its successor 100_0 waits in the queue."""
    story = fresh()
    story.run(LIMIT - LEAD + 10)
    assert story.succession.heir("a/0") == "100_0"
    return story


def test_a_successor_is_submitted_once_and_so_early_that_it_is_ready_at_the_warning() -> None:
    story = fresh()
    acts = story.run(LIMIT)
    assert [type(act) for act in acts] == [Succeed]
    assert story.times(Succeed) == [pytest.approx(LIMIT - LEAD, abs=2)]


def test_the_lead_follows_what_was_measured() -> None:
    memory = Memory()
    for what, seconds in (("wait", 20.0), ("wait", 900.0), ("load", 200.0)):
        memory.apply(Sample(at=0.0, pool="a", what=what, seconds=seconds))  # type: ignore[arg-type]
    story = fresh(memory=memory)
    story.run(LIMIT)
    assert story.times(Succeed) == [pytest.approx(LIMIT - (WARNING + 900 + 200 + MARGIN), abs=2)]


@pytest.mark.parametrize(("time", "limit", "lead"), [("4:00:00", LIMIT, 600.0), ("10", 600.0, 450.0)])
def test_never_earlier_than_the_most_lead_or_three_quarters_of_the_limit(
    time: str, limit: float, lead: float
) -> None:
    story = Story(deployment(time=time, most=600.0), now=limit - 1200)
    story.succession.up(view(until=limit), 0.0)
    story.run(limit)
    assert story.times(Succeed) == [pytest.approx(limit - lead, abs=2)]


def test_without_a_known_end_nothing_is_submitted_until_slurm_has_told_one() -> None:
    story = Story()
    story.succession.up(view(until=0.0), 0.0)
    assert story.succession.curious
    assert story.run(story.now + HOURS) == []
    story.answered(running("1_0", story.now + LEAD - 10))
    assert not story.succession.curious
    assert [type(act) for act in story.run(story.now + 60)] == [Succeed]


def test_slurms_word_about_the_end_counts_more_than_the_agents() -> None:
    story = fresh()
    story.answered(running("1_0", LIMIT + HOURS))  # an operator has raised the limit
    story.run(LIMIT + HOURS)
    assert story.times(Succeed) == [pytest.approx(LIMIT + HOURS - LEAD, abs=2)]


@pytest.mark.parametrize("mode", ["off", "chain"])
def test_nothing_is_submitted_where_it_is_not_wanted(mode: Successors) -> None:
    story = fresh(made=deployment(mode=mode))
    assert story.run(LIMIT) == []


def test_nothing_is_submitted_when_the_budget_is_used_up() -> None:
    story = fresh()
    story.frozen = True
    assert story.run(LIMIT) == []


def test_when_the_successor_has_taken_over_its_own_end_counts() -> None:
    story = pending()
    waited = story.succession.coming(view("100"), story.now + 40)
    assert waited == pytest.approx(50, abs=3)
    assert story.succession.heir("a/0") == "100_0"
    end = story.now + HOURS
    story.succession.up(view("100", until=end), story.now + 60)
    story.succession.retired("a/0", "1_0", story.now + 60)
    assert story.succession.heir("a/0") == ""
    story.answered(running("100_0", end))
    assert [type(act) for act in story.run(end)] == [Succeed]


def test_the_old_job_is_cancelled_only_when_slurm_still_has_it_long_after_the_hand_over() -> None:
    for state, cancelled in (("completed", False), ("running", True), ("requeued", True)):
        story = pending()
        story.succession.up(view("100", until=3 * LIMIT), story.now)
        story.succession.retired("a/0", "1_0", story.now)
        since = story.now
        story.answered(running("1_0", state=state))  # type: ignore[arg-type]
        story.run(story.now + 200)
        times = [when for when in story.times(Cancel) if when > since]
        assert bool(times) is cancelled
        if state == "running":
            assert times[0] - since >= Walltime().drain_seconds, "it may drain in peace"
        if state == "requeued":
            assert times[0] - since <= 2, "it must not become a second life"


@pytest.mark.parametrize("handed_back", [True, False])
def test_when_the_task_ends_first_it_lives_in_its_successors_job_from_then_on(handed_back: bool) -> None:
    story = pending()
    since = story.now
    story.absent = [view(phase="gone", since=since, handed_back=handed_back)]
    acts = story.run(since + 30)
    promoted = Promote("a/0", "100_0", "1_0")
    if handed_back:
        assert acts == [promoted, Cancel("a/0", "1_0", "its successor 100_0 is under way")], "one life is enough"
        assert story.times(Promote)[0] - since <= 2
    else:
        assert acts == [], "it may only have been restarted"
        story.answered(running("1_0", state="completed", raw="COMPLETED") | running("100_0", state="pending"))
        assert story.run(story.now + 2) == [promoted]
    assert story.succession.heir("a/0") == ""


def test_an_agent_that_is_restarted_in_its_job_on_a_slow_node_keeps_it() -> None:
    story = pending()
    story.absent = [view(phase="gone", since=story.now)]
    story.answered(running("1_0", LIMIT) | running("100_0", state="pending"))
    assert story.run(story.now + 60) == []
    story.absent = []
    story.succession.up(view(incarnation=2), story.now)
    assert story.run(story.now + 200) == []
    assert story.succession.heir("a/0") == "100_0"


def test_an_agent_that_does_not_come_back_though_its_job_runs_is_given_up() -> None:
    story = pending()
    since = story.now
    story.absent = [view(phase="gone", since=since)]
    story.answered(running("1_0", LIMIT) | running("100_0", state="pending"))
    story.run(since + PATIENCE.start + 2)
    assert story.times(Promote) == [pytest.approx(since + PATIENCE.start, abs=2)]


@pytest.mark.parametrize("taken", [True, False])
def test_a_submission_without_an_answer_is_looked_for_before_it_is_repeated(taken: bool) -> None:
    story = fresh()
    while not story.acts:
        story.now += 1.0
        for act in story.succession.decide([], set(), story.now):
            story.acts.append((story.now, act))
            story.succession.submitted(act.key, "", "sbatch did not answer", story.now, unknown=True)
    assert story.succession.searching
    assert story.succession.succeeded() == {"a/0"}, "recovery must not submit another one meanwhile"
    story.run(story.now + 60)
    records = running("100_0", state="pending", raw="PENDING") if taken else {}
    story.succession.search({"a": ["1", "100"]}, records, story.now)
    assert story.succession.heir("a/0") == ("100_0" if taken else "")
    story.run(story.now + PATIENCE.settle)
    if not taken:
        story.succession.search({"a": ["1", "100"]}, records, story.now)
        assert story.succession.succeeded() == set()
    story.run(story.now + 2 * RETRY_SECONDS)
    assert len(story.times(Succeed)) == (1 if taken else 2)


def test_a_successor_that_came_too_late_tells_how_long_it_waited() -> None:
    story = pending()
    asked = story.times(Succeed)[0]
    story.absent = [view(phase="gone", since=story.now, handed_back=True)]
    story.run(story.now + 5)
    assert story.succession.up(view("100", until=LIMIT + HOURS), asked + 2000) == pytest.approx(2000, abs=2)
    assert story.succession.up(view("100", until=LIMIT + HOURS), asked + 3000) is None, "learned once"


def test_a_silent_agent_has_its_time_to_be_heard_again_before_its_successor_counts() -> None:
    story = pending()
    since = story.now
    story.absent = [view(phase="lost", since=since)]
    assert story.run(since + PATIENCE.hung - 1) == []
    assert [type(act) for act in story.run(since + PATIENCE.hung + 2)] == [Promote, Cancel]


def test_an_agent_that_the_broker_expects_still_is_not_over() -> None:
    story = pending()
    story.absent = [view(phase="expected", since=story.now)]
    assert story.run(story.now + 600) == []


def test_while_half_of_the_fleet_is_silent_nothing_is_cancelled() -> None:
    story = Story(deployment(tasks=4))
    for task in range(4):
        story.succession.up(view(task=task), 0.0)
    story.run(LIMIT - 600)
    assert len(story.times(Succeed)) == 4
    story.absent = [view(task=task, phase="lost", since=story.now) for task in range(3)]
    assert story.run(story.now + 300) == []


def test_a_successor_that_slurm_lost_is_submitted_again_after_a_pause() -> None:
    story = pending()
    for _ in range(2):
        story.answered(running("1_0", LIMIT))
    assert story.succession.heir("a/0") == ""
    failed = story.now
    story.run(LIMIT)
    assert len(story.times(Succeed)) == 2
    assert story.times(Succeed)[1] - failed >= RETRY_SECONDS


def test_one_answer_alone_does_not_mean_that_it_is_lost() -> None:
    story = pending()
    for _ in range(3):
        story.answered(running("1_0", LIMIT))
        story.answered(running("100_0", state="pending", raw="PENDING"))
        break
    assert story.succession.heir("a/0") == "100_0"


def test_a_successor_that_somebody_cancelled_is_not_submitted_again() -> None:
    story = pending()
    for _ in range(2):
        story.answered(running("100_0", state="failed", raw="CANCELLED by 0"))
    story.run(LIMIT)
    assert len(story.times(Succeed)) == 1


def test_a_refused_submission_is_tried_again_ever_more_slowly() -> None:
    story = fresh()
    story.refuse = "no such partition"
    story.run(LIMIT)
    gaps = [b - a for a, b in itertools.pairwise(story.times(Succeed))]
    assert gaps == sorted(gaps)
    assert gaps[0] == pytest.approx(RETRY_SECONDS, abs=11)
    assert len(gaps) < 6


def test_a_parked_task_has_no_successor() -> None:
    story = pending()
    story.parked = {"a/0"}
    assert story.run(story.now + 30) == [Cancel("a/0", "100_0", "its task is not needed now")]
    story = fresh()
    story.parked = {"a/0"}
    assert story.run(LIMIT) == []


def test_a_restarted_broker_submits_no_second_successor() -> None:
    memory = Memory()
    memory.apply(Agent.of(view(), None, 0.0))
    memory.apply(Heir(at=9000.0, key="a/0", job="100_0"))
    again = Memory()
    for record in memory.records(9100.0):
        again.apply(record)
    story = Story(memory=again, now=9100.0)
    story.succession.up(view(), 9100.0)
    assert story.succession.heir("a/0") == "100_0"
    assert story.run(LIMIT) == []
    again.apply(Agent.of(view("100"), None, 9200.0))
    assert again.heirs == {}, "it has taken over"


def orphaned() -> Story:
    """An earlier broker died between its wish for a successor and Slurm's answer."""
    memory = Memory()
    memory.apply(Agent.of(view(), None, 0.0))
    memory.apply(Heir(at=LIMIT - 600, key="a/0", job=""))
    story = Story(memory=memory, now=LIMIT - 599)
    story.succession.up(view(), LIMIT - 599)
    assert story.succession.searching
    return story


def test_a_job_that_an_earlier_broker_had_no_time_to_note_is_looked_for_before_another_one_is_submitted() -> None:
    story = orphaned()
    found = running("12_0", state="pending", raw="PENDING")
    story.succession.search({"a": ["1", "12"]}, running("1_0") | found, story.now)
    assert story.succession.heir("a/0") == "12_0"
    assert not story.succession.searching
    assert story.run(LIMIT) == []


def test_when_there_is_no_such_job_for_long_enough_one_is_submitted() -> None:
    story = orphaned()
    assert story.run(story.now + 2 * PATIENCE.settle) == [], "Slurm could not be asked: nobody knows"
    story.succession.search({"a": ["1"]}, running("1_0"), story.now)
    assert [type(act) for act in story.run(LIMIT)] == [Succeed]


def test_a_job_that_nobody_noted_is_known_by_its_agents_hello() -> None:
    story = orphaned()
    story.succession.coming(view("12"), story.now)
    story.succession.search({"a": ["1"]}, running("1_0"), story.now + 2 * PATIENCE.settle)
    assert story.run(LIMIT) == []
    assert story.succession.heir("a/0") == "12_0"


def test_a_requeued_tasks_earlier_end_does_not_count() -> None:
    story = fresh()
    story.now = LIMIT - LEAD - 100
    story.answered(running("1_0", LIMIT))
    story.succession.up(view(until=0.0, incarnation=2), story.now + 1)  # the same job, run again
    story.succession.answered(running("1_0", LIMIT), story.now, story.now + 2)  # asked before it came
    assert story.succession.curious
    assert story.run(LIMIT) == []
    story.answered(running("1_0", 2 * LIMIT))
    assert not story.succession.curious
    assert story.run(LIMIT + 600) == []


def test_an_agent_that_drains_by_itself_is_told_once_that_it_has_a_successor() -> None:
    assert not fresh().succession.warn("a/0")
    story = pending()
    assert [story.succession.warn("a/0") for _ in range(3)] == [True, False, False]


def test_in_a_chain_the_next_job_is_the_successor_and_the_last_has_none() -> None:
    story = Story(deployment(mode="chain"))
    story.succession.chained({"a/0": ["5_0", "6_0"]})
    story.succession.up(view("1"), 0.0)
    assert story.succession.heir("a/0") == "5_0"
    assert story.succession.warn("a/0"), "it must not be requeued besides"
    story.absent = [view("1", phase="gone", since=10.0)]
    story.answered(running("1_0", state="failed", raw="FAILED") | running("5_0", state="pending"))
    assert story.run(story.now + 60) == [Promote("a/0", "5_0", "1_0")]
    story.absent = []
    story.succession.up(view("5", until=2 * LIMIT), 70.0)
    assert story.succession.heir("a/0") == "6_0"
    story.succession.up(view("6", until=2 * LIMIT), 80.0)
    assert story.succession.heir("a/0") == ""
    assert "1 tasks have none left" in story.succession.notes()[0]


def test_in_a_chain_a_job_that_starts_before_its_predecessor_ends_succeeds_it_as_any_other() -> None:
    story = Story(deployment(mode="chain"))
    story.succession.chained({"a/0": ["5_0", "6_0"]})
    story.succession.up(view("1"), 0.0)
    assert story.succession.coming(view("5"), story.now) is None, "nobody knows how long Slurm let it wait"
    assert story.run(story.now + 120) == []
    story.succession.retired("a/0", "1_0", story.now)
    story.succession.up(view("5", until=2 * LIMIT), story.now)
    assert story.succession.heir("a/0") == "6_0"


def tied(state: JobState = "running", raw: str = "RUNNING") -> dict[str, JobRecord]:
    """Task 0 lives in job 1; the next job of its chain may not start yet."""
    return running("1_0", state=state, raw=raw) | {"5_0": JobRecord("5_0", "pending", "PENDING", "Dependency")}


@pytest.mark.parametrize(
    "absent", [view(phase="lost", since=900.0), view(phase="gone", since=900.0, handed_back=True)]
)
def test_in_a_chain_a_task_whose_next_job_may_not_start_yet_is_looked_after_as_if_there_was_none(
    absent: AgentView,
) -> None:
    story = Story(deployment(2, mode="chain"), now=800.0)
    story.succession.chained({"a/0": ["5_0"]})
    story.succession.up(view("1"), 800.0)
    assert story.succession.succeeded() == {"a/0"}, "as long as Slurm says nothing"
    story.now, story.absent = 905.0, [absent]
    story.answered(tied())
    assert story.succession.succeeded() == set()
    assert story.run(1500.0) == []
    story.answered(tied("failed", "CANCELLED"))
    assert story.succession.succeeded() == {"a/0"}, "Slurm will start it"
    assert Promote("a/0", "5_0", "1_0") in story.run(story.now + 60)


def test_in_a_chain_the_successor_of_one_that_ended_too_soon_is_the_next() -> None:
    story = Story(deployment(mode="chain"))
    story.succession.chained({"a/0": ["5_0", "6_0", "7_0"]})
    story.succession.up(view("1"), 0.0)
    for _ in range(2):
        story.answered(
            running("5_0", state="failed", raw="FAILED") | running("6_0", state="pending", raw="PENDING")
        )
    assert story.succession.heir("a/0") == "6_0"
    story.succession.coming(view("6"), story.now)
    story.succession.lapsed(view("6"), story.now)
    assert story.succession.heir("a/0") == "7_0"


def test_a_task_that_was_submitted_anew_is_not_succeeded_by_an_earlier_job_of_its_chain() -> None:
    story = Story(deployment(mode="chain"))
    story.succession.chained({"a/0": ["5_0", "6_0"]})
    for job in ("1", "5", "6", "9"):
        story.succession.up(view(job), story.now)
    assert story.succession.heir("a/0") == ""


def test_a_task_that_is_not_wanted_needs_nothing_of_its_chain() -> None:
    story = Story(deployment(mode="chain"))
    story.succession.chained({"a/0": ["5_0", "6_0"]})
    story.succession.up(view("1"), 0.0)
    story.parked = {"a/0"}
    assert [act.job for act in story.run(story.now + 10)] == ["5_0", "6_0"]


def test_when_the_budget_is_used_up_a_successor_that_waits_is_cancelled_and_one_that_is_there_is_not() -> None:
    story = pending()
    story.frozen = True
    assert story.run(story.now + 10) == [Cancel("a/0", "100_0", "the budget is used up")]
    assert story.succession.heir("a/0") == ""
    story = pending()
    story.succession.coming(view("100", until=2 * LIMIT), story.now)
    story.frozen = True
    assert story.run(story.now + 10) == []


@pytest.mark.parametrize(
    ("tasks", "time", "minutes"),
    [
        (1, "4:00:00", [int(LIMIT - LEAD) // 60]),
        (3, "4:00:00", [219, 222, 225]),  # a load and a drain apart, the last as late as may be
        (1, "5", [1]),
        (2, "2", [1, 1]),  # Slurm takes no 0
        (1, None, None),
    ],
)
def test_jobs_that_are_submitted_in_advance_start_as_early_as_successors_would(
    tasks: int, time: str | None, minutes: list[int] | None
) -> None:
    made = msgspec.structs.replace(deployment(tasks, mode="chain"), slurm=SlurmResources(time=time))
    assert in_advance(made, made.pool[0], Learned()) == minutes


# --- many tasks ----------------------------------------------------------------------------------------------


def test_tasks_that_end_together_are_succeeded_one_after_another_the_first_to_end_first() -> None:
    tasks = 40
    story = Story(deployment(tasks, most=4 * HOURS), now=LIMIT - 5000)
    for task in range(tasks):
        story.succession.up(view(task=task, until=LIMIT + task), 0.0)
    while story.now < LIMIT:
        for act in story.run(story.now + 1):  # each takes over at once
            story.succession.up(view(f"{story.jobs - 1}", task=int(act.key[2:]), until=9 * LIMIT), story.now)
    assert [act.key for _, act in story.acts] == [f"a/{task}" for task in range(tasks)]
    times = story.times(Succeed)
    gap = (PRIOR_LOAD + Walltime().drain_seconds) / (tasks // DOUBLED)
    assert all(b - a >= gap - 3 for a, b in itertools.pairwise(times))
    for task, when in enumerate(times):
        assert when <= LIMIT + task - LEAD + 2


@settings(max_examples=30, deadline=None)
@given(
    ends=st.lists(st.integers(3000, 20_000), min_size=1, max_size=30),
    wait=st.integers(1, 2000),
    load=st.integers(1, 600),
    most=st.integers(0, 4000),
)
def test_every_task_gets_exactly_one_successor_none_too_early(
    ends: list[int], wait: int, load: int, most: int
) -> None:
    memory = Memory()
    memory.apply(Sample(at=0.0, pool="a", what="wait", seconds=float(wait)))
    memory.apply(Sample(at=0.0, pool="a", what="load", seconds=float(load)))
    story = Story(deployment(len(ends), time="5:00:00", most=float(most)), memory)
    for task, end in enumerate(ends):
        story.succession.up(view(task=task, until=float(end)), 0.0)
    for now in range(0, max(ends) + 6000, 120):
        story.now = now
        story.run(now + 1)
    done = {act.key: when for when, act in story.acts}
    assert len(story.acts) == len(done) == len(ends)
    for task, end in enumerate(ends):
        assert done[f"a/{task}"] >= end - most


# --- learning ------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=100))
def test_the_high_value_is_a_sample_that_few_exceed(samples: list[float]) -> None:
    value = high(samples)
    assert value in samples
    assert sum(sample > value for sample in samples) <= 0.1 * len(samples)


def test_only_the_last_samples_of_each_pool_count() -> None:
    learned = Learned([("a", "wait", 9999.0), ("b", "wait", 5.0)])
    for _ in range(KEPT):
        learned.add("a", "wait", 10.0)
    assert (learned.wait("a"), learned.wait("b"), learned.load("a")) == (10.0, 5.0, None)
