"""What is done about a task that is away, and what never is."""

from __future__ import annotations

import itertools

import pytest

from exahpc.broker.limits import Allowance, Limits
from exahpc.broker.memory import Begun, Ended, Memory, NoRequeue
from exahpc.broker.recovery import Act, Recovery
from exahpc.broker.values import AgentPhase, AgentView, JobWord
from exahpc.broker.verdict import PATIENCE
from exahpc.deployment.spec import Deployment, Model, Pool
from exahpc.slurm.api import JobRecord, JobState

HUNG, START, SETTLE = PATIENCE.hung, PATIENCE.start, PATIENCE.settle


def deployment(tasks: int = 2, *, requeue: bool = True) -> Deployment:
    return Deployment(name="t", model=Model(path="/m"), pool=(Pool(name="a", replicas=tasks, requeue=requeue),))


def away(phase: AgentPhase = "lost", since: float = 100.0, task: int = 0, *, node: str = "n1") -> AgentView:
    return AgentView(f"a/{task}", "a", task, phase, since, incarnation=1, node=node)


def record(
    state: JobState = "running",
    raw: str = "",
    *,
    job: str = "7_0",
    reason: str = "",
    restarts: int = 0,
    nodes: tuple[str, ...] = ("n1",),
) -> JobRecord:
    return JobRecord(job, state, raw or state.upper(), reason, nodes if state == "running" else (), restarts)


class Story:
    """A recovery that is asked once a second and told Slurm's answer once in ten."""

    def __init__(self, *, requeue: bool = True, memory: Memory | None = None, tasks: int = 2) -> None:
        self.recovery = Recovery(deployment(tasks, requeue=requeue), memory or Memory(), 0.0)
        self.recovery.placed("a", ["7"], {}, 0.0)
        self.now = 0.0
        self.answer: list[JobRecord] = [record()]
        self.absent: list[AgentView] = []
        self.acts: list[tuple[float, Act]] = []
        self.broken = False
        self.disabled = False
        self.new_job = "8_0"

    def run(self, until: float) -> list[tuple[float, str]]:
        """(time, kind) of what was done meanwhile."""
        first = len(self.acts)
        while self.now < until:
            self.now += 1.0
            if self.recovery.query_due(self.now, bool(self.absent)) and not self.broken:
                self.recovery.answered({r.id: r for r in self.answer}, self.now)
            for act in self.recovery.decide(self.absent, self.now):
                self.acts.append((self.now, act))
                job = self.new_job if act.kind == "resubmit" else act.job
                disabled = self.disabled and act.kind == "requeue"
                error = "presently disabled" if disabled else ""
                self.recovery.done(act.key, act.kind, job, error, self.now, disabled=disabled)
        return [(when, act.kind) for when, act in self.acts[first:]]

    @property
    def words(self) -> str:
        return self.recovery.story("a/0")


def test_a_healthy_fleet_is_left_alone() -> None:
    assert Story().run(1000) == []


def test_a_silent_agent_whose_job_runs_on_is_requeued_once_off_its_node() -> None:
    story = Story()
    story.run(100)
    story.absent = [away()]
    acts = story.run(100 + HUNG + SETTLE - 1)
    assert [kind for _, kind in acts] == ["requeue"]
    assert 100 + HUNG <= acts[0][0] <= 100 + HUNG + 11
    act = story.acts[0][1]
    assert (act.job, act.suspect, act.exclude) == ("7_0", "n1", ("n1",))


def test_slurms_word_from_before_the_loss_does_not_count() -> None:
    story = Story()
    story.run(100)
    story.absent, story.broken = [away()], True  # as last known: running
    assert story.run(1000) == []
    assert "waiting for Slurm's word" in story.words


@pytest.mark.parametrize(
    ("state", "raw"), [("requeued", "PREEMPTED"), ("requeued", "NODE_FAIL"), ("pending", "PENDING")]
)
def test_a_job_on_its_way_back_is_never_submitted_again(state: JobState, raw: str) -> None:
    """B44: PREEMPTED and NODE_FAIL are not ends when Slurm requeues under the same id."""
    story = Story()
    story.run(100)
    story.absent = [away()]
    story.answer = [record(state, raw, reason="BeginTime")]
    assert story.run(400) == []
    assert "waits in Slurm's queue: BeginTime" in story.words
    story.answer = [record(restarts=1, nodes=("n2",))]
    assert story.run(400 + START - 20) == [], "the new run has its time to come up"
    story.recovery.up("a/0", "7_0")
    story.absent = []
    assert story.run(1000) == []
    assert story.words == ""


def test_what_slurm_says_of_an_absent_task_is_told_to_others_also_when_it_lives_in_another_job_meanwhile() -> None:
    story = Story()
    story.run(100)
    view = away("gone")
    story.absent, story.answer = [view], [record("requeued", "PREEMPTED")]
    assert story.recovery.said(view) == JobWord()
    story.run(120)
    assert story.recovery.said(view) == JobWord(taken=True)
    story.answer = [record("failed", "FAILED")]
    story.run(130)
    assert story.recovery.said(view) == JobWord(), "asking once more"
    story.answer += [record("pending", job="8_0")]
    story.run(180)
    assert [act.kind for _, act in story.acts] == ["resubmit"]
    assert story.recovery.said(view).over == "its job 7_0 is over (FAILED)"
    assert story.recovery.said(away("gone", since=200.0)) == JobWord(), "that was before"


@pytest.mark.parametrize(
    ("raw", "own"),
    [
        ("FAILED", True),
        ("OUT_OF_MEMORY", True),
        ("CANCELLED by 1000", False),
        ("TIMEOUT", False),
        ("NODE_FAIL", False),
    ],
)
def test_a_job_whose_nodes_were_taken_away_did_not_end_by_itself(raw: str, own: bool) -> None:
    story = Story()
    story.run(100)
    view = away("gone")
    story.absent, story.answer = [view], [record("failed", raw)]
    story.run(130)
    assert bool(story.recovery.said(view).over) is own
    assert story.recovery.said(view).taken is not own


def test_a_run_that_changed_between_two_queries_is_a_new_run() -> None:
    story = Story()
    story.run(100)
    story.absent = [away()]
    story.answer = [record(restarts=1, nodes=("n2",))]  # its pending time was never seen
    assert story.run(100 + START - 10) == []


def test_a_job_that_runs_without_ever_having_an_agent_is_requeued_off_its_first_node() -> None:
    story = Story()
    story.absent = [away("unheard", 0.0, node="")]
    story.answer = [record(nodes=("n5", "n6"))]
    acts = story.run(START + 20)
    assert [kind for _, kind in acts] == ["requeue"]
    assert acts[0][0] >= START
    assert story.acts[0][1].suspect == "n5"


@pytest.mark.parametrize("raw", ["FAILED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL"])
def test_an_ended_job_is_resubmitted_into_its_slot_once_two_answers_agree(raw: str) -> None:
    story = Story()
    story.run(100)
    story.absent = [away()]
    story.answer = [record("failed", raw)]
    acts = story.run(125)
    assert [kind for _, kind in acts] == ["resubmit"]
    assert acts[0][0] > 110
    assert story.recovery.job("a/0") == "8_0"
    story.answer.append(record("pending", job="8_0", reason="Priority"))
    assert story.run(1000) == [], "the old record says no more than the old job"
    assert "Priority" in story.words


def test_an_agent_that_is_heard_once_more_from_a_replaced_job_costs_no_second_submission() -> None:
    story = Story()
    story.run(100)
    story.absent = [away()]
    story.answer = [record("failed", "NODE_FAIL"), record("pending", job="8_0")]
    assert [kind for _, kind in story.run(150)] == ["resubmit"]
    story.absent = []
    story.recovery.up("a/0", "7_0")  # its node is reachable again, for a moment
    story.run(155)
    story.absent = [away(since=155.0)]
    assert story.run(1000) == []
    assert story.recovery.job("a/0") == "8_0"


def test_a_failed_query_or_a_flickering_answer_never_means_a_failed_job() -> None:
    """B43."""
    story = Story()
    story.run(100)
    story.absent = [away("gone")]
    story.answer = []  # an answer without the job, once
    story.run(110)
    story.answer = [record("completing")]
    assert story.run(300) == []
    story.broken = True
    assert story.run(600) == []


def test_a_job_that_slurm_has_forgotten_is_resubmitted() -> None:
    story = Story()
    story.absent = [away("gone")]
    story.answer = [record("pending", job="8_0")]
    assert [kind for _, kind in story.run(500)] == ["resubmit"]


def test_a_job_that_somebody_cancelled_stays_cancelled() -> None:
    story = Story()
    story.absent = [away("gone", 0.0)]
    story.answer = [record("failed", "CANCELLED by 1000")]
    assert story.run(5000) == []
    assert "cancelled by somebody" in story.words


def test_where_requeue_is_disabled_the_task_is_cancelled_and_resubmitted_and_the_site_is_remembered() -> None:
    """B47."""
    story = Story()
    story.run(100)
    story.absent = [away()]
    story.disabled = True
    assert [kind for _, kind in story.run(200)] == ["requeue", "cancel"]
    story.answer = [record("failed", "CANCELLED by 0"), record("pending", job="8_0")]
    assert [kind for _, kind in story.run(400)] == ["resubmit"], "our own cancelling is no wish of a user"
    recovery = Recovery(deployment(), Memory(), 0.0)
    recovery.placed("a", ["7"], {}, 0.0)
    assert recovery.done("a/0", "requeue", "7_0", "presently disabled", 1.0, disabled=True)
    assert not recovery.done("a/1", "requeue", "7_1", "Socket timed out", 1.0)


@pytest.mark.parametrize("source", ["deployment", "journal"])
def test_a_pool_without_requeue_is_never_requeued(source: str) -> None:
    memory = Memory()
    if source == "journal":
        memory.apply(NoRequeue(at=0.0, pool="a", why="disabled"))
    story = Story(requeue=source != "deployment", memory=memory)
    story.run(100)
    story.absent = [away()]
    assert [kind for _, kind in story.run(150)] == ["cancel"]


def test_nothing_is_done_twice_while_it_is_under_way() -> None:
    recovery = Recovery(deployment(), Memory(), 0.0)
    recovery.placed("a", ["7"], {}, 0.0)
    for asked in (110.0, 120.0):
        recovery.answered({"7_0": record("failed")}, asked)
    assert len(recovery.decide([away()], 120.0)) == 1
    for later in (121.0, 500.0, 5000.0):
        recovery.answered({"7_0": record("failed")}, later)
        assert recovery.decide([away()], later) == [], "its outcome is not known yet"


def test_a_deed_that_does_not_show_is_tried_again_later() -> None:
    story = Story()
    story.run(100)
    story.absent = [away()]
    acts = story.run(300)
    assert [kind for _, kind in acts] == ["requeue", "requeue"]
    assert acts[1][0] - acts[0][0] >= SETTLE


def test_a_hopeless_task_is_given_up_with_a_reason_and_tried_again_in_the_next_hour() -> None:
    story = Story()
    story.absent = [away("gone", 0.0)]
    story.answer = [record("failed"), record("failed", job="8_0")]
    acts = story.run(3000)
    limits = Limits.of_fleet(2)
    assert len(acts) == limits.tries
    gaps = [after - before for (before, _), (after, _) in itertools.pairwise(acts)]
    assert all(gap >= limits.backoff * 2**n for n, gap in enumerate(gaps)), gaps
    assert "given up after 5 rebuilds" in story.words
    assert len(story.run(limits.window + 100)) >= 1


def test_a_budget_outlives_the_broker_and_an_unfinished_deed_is_not_repeated_at_once() -> None:
    memory = Memory()
    for at in (10.0, 20.0, 30.0, 40.0, 50.0):
        memory.apply(Begun(at=at, key="a/0", kind="resubmit", job="7_0"))
        memory.apply(Ended(at=at, key="a/0", kind="resubmit", job="8_0", error=""))
    memory.apply(Begun(at=60.0, key="a/1", kind="resubmit", job="7_1"))
    story = Story(memory=memory)
    story.now = 60.0
    story.answer = [record("failed", job="8_0"), record("failed", job="7_1")]
    story.absent = [away("gone", 60.0), away("gone", 60.0, task=1)]
    acts = story.run(60 + SETTLE + 5)
    assert [act.key for _, act in story.acts] == ["a/1"]
    assert acts[0][0] >= 60 + SETTLE


def test_a_broker_that_died_while_cancelling_leaves_no_task_behind() -> None:
    memory = Memory()
    memory.apply(Begun(at=60.0, key="a/0", kind="cancel", job="7_0"))
    story = Story(memory=memory)
    story.now = 60.0
    story.answer = [record("failed", "CANCELLED by 0"), record("pending", job="8_0")]
    story.absent = [away("gone", 60.0)]
    assert [kind for _, kind in story.run(100)] == ["resubmit"]


def test_when_half_of_the_fleet_is_silent_running_jobs_are_left_alone() -> None:
    story = Story(tasks=6)
    story.answer = [record(job=f"7_{task}", nodes=(f"n{task}",)) for task in range(6)]
    story.run(100)
    story.absent = [away(task=task, node=f"n{task}") for task in range(3)]
    assert story.run(2000) == []
    assert "look at the head's network" in story.words
    story.absent = story.absent[:2]
    assert {act.key for _, act in story.acts} == set()
    story.run(2100)
    assert {act.key for _, act in story.acts} == {"a/0", "a/1"}


def test_a_broker_without_memory_finds_a_resubmitted_task_by_the_job_book() -> None:
    story = Story()
    story.recovery = Recovery(deployment(), Memory(), 0.0)
    records = {r.id: r for r in (record("failed"), record("pending", job="8_0"))}
    story.recovery.placed("a", ["7", "8"], records, story.now)
    assert (story.recovery.job("a/0"), story.recovery.job("a/1")) == ("8_0", "7_1")
    assert story.recovery.arrays() == {"7", "8"}
    story.answer = list(records.values())
    story.absent = [away("unheard", 0.0)]
    assert story.run(500) == []


@pytest.mark.parametrize("taken", [True, False])
def test_a_resubmission_without_an_answer_is_looked_for_before_it_is_repeated(taken: bool) -> None:
    story = Story()
    story.recovery.up("a/0", "7_0", "n1")
    view, ended = away("gone"), record("failed", "FAILED")
    records = {"7_0": ended}
    for now in (110.0, 120.0):
        story.recovery.answered(records, now)
    (act,) = story.recovery.decide([view], 121.0)
    assert act.kind == "resubmit"
    story.recovery.done("a/0", "resubmit", "7_0", "sbatch did not answer", 122.0, unknown=True)
    assert story.recovery.searching
    if taken:
        records |= {"8_0": record("pending", job="8_0")}
    for now in range(130, int(122 + SETTLE), 10):
        story.recovery.placed("a", ["7", "8"], records, float(now))
        story.recovery.answered(records, float(now))
        assert story.recovery.decide([view], now + 1.0) == []
    assert story.recovery.job("a/0") == ("8_0" if taken else "7_0")
    for now in range(int(122 + SETTLE), 500, 10):
        story.recovery.answered(records, float(now))
        if acts := story.recovery.decide([view], now + 1.0):
            break
    assert bool(acts) is not taken


def test_slurm_is_asked_at_most_once_in_ten_seconds() -> None:
    recovery = Recovery(deployment(), Memory(), 0.0)
    asked = [t / 4 for t in range(1200) if recovery.query_due(t / 4, absent=t % 3 == 0)]
    assert all(later - earlier >= 10 for earlier, later in itertools.pairwise(asked))
    calm = Recovery(deployment(), Memory(), 0.0)
    assert sum(calm.query_due(float(t), absent=False) for t in range(600)) == 10


def test_rebuilds_of_all_tasks_together_are_paced() -> None:
    limits = Limits(burst=4, refill_seconds=10.0)
    allowance = Allowance(limits, {}, 0.0, lambda: 0.0)
    begun = []
    for second in range(200):
        for task in range(100):
            key = f"a/{task}"
            if key not in begun and allowance.refusal(key, float(second)) is None:
                allowance.spend(key, float(second))
                begun.append(key)
    assert len(begun) == 4 + 19


def test_a_new_broker_does_not_begin_with_a_full_bucket_in_the_middle_of_a_storm() -> None:
    history = {f"a/{task}": [(99.0, "requeue")] for task in range(4)}
    allowance = Allowance(Limits(burst=4, refill_seconds=10.0), history, 100.0, lambda: 0.0)  # type: ignore[arg-type]
    assert allowance.refusal("a/9", 100.0) is not None
    assert allowance.refusal("a/9", 111.0) is None


def test_a_fleet_of_any_size_is_rebuilt_within_minutes() -> None:
    for tasks in (1, 10, 256, 3072):
        limits = Limits.of_fleet(tasks)
        assert max(0, tasks - limits.burst) * limits.refill_seconds <= 180
