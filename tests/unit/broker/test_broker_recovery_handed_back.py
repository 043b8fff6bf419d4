"""A task that was handed back because of its node runs again elsewhere."""

from __future__ import annotations

import pytest

from exahpc.broker.memory import Agent, Excluded, Memory
from exahpc.broker.values import AgentView
from exahpc.slurm.api import JobState
from tests.unit.broker.test_broker_recovery import Story, record


def handed_back(since: float, *, task: int = 0, node: str = "n1", suspect: bool = True) -> AgentView:
    return AgentView(
        f"a/{task}",
        "a",
        task,
        "gone",
        since,
        incarnation=1,
        node=node,
        job=f"7_{task}",
        reason="replica 0 stays slow",
        handed_back=True,
        suspect=suspect,
    )


class TwoNodes(Story):
    """Its other tasks live on n2."""

    def __init__(self, *, requeue: bool = True, memory: Memory | None = None, tasks: int = 2) -> None:
        super().__init__(requeue=requeue, memory=memory, tasks=tasks)
        for task in range(tasks):
            self.recovery.up(f"a/{task}", f"7_{task}", "n2" if task else "n1")


def test_it_is_requeued_off_its_node_at_once_and_then_left_to_slurm() -> None:
    """DESIGN 4.3. Slurm may give it the same node within seconds, so nobody waits for its answers."""
    story = TwoNodes()
    story.run(100)
    story.absent = [handed_back(100.0)]
    assert story.run(101) == [(101.0, "requeue")]
    act = story.acts[0][1]
    assert (act.job, act.suspect, act.exclude) == ("7_0", "n1", ("n1",))
    story.answer = [record("requeued", "PENDING", reason="BeginTime", restarts=1)]
    assert story.run(400) == []
    story.answer = [record(restarts=1, nodes=("n3",))]
    assert story.run(460) == []


def test_an_end_before_walltime_is_no_reason_to_leave_a_node() -> None:
    story = TwoNodes()
    story.run(100)
    story.absent = [handed_back(100.0, suspect=False)]
    story.answer = [record("requeued", "PENDING", reason="BeginTime", restarts=1)]
    assert story.run(400) == []


@pytest.mark.parametrize("state", ["pending", "requeued", "completing", "running"])
def test_a_refusal_is_tried_once_more_as_long_as_slurm_may_choose_that_node(state: JobState) -> None:
    story = TwoNodes()
    story.run(100)
    story.absent = [handed_back(100.0)]
    story.answer = [record(state)]
    (act,) = story.recovery.decide(story.absent, 101.0)
    story.recovery.done(act.key, act.kind, act.job, "still completing", 101.0)
    assert [kind for _, kind in story.run(115)] == ["requeue"]


def test_it_is_left_alone_where_it_runs_elsewhere_already() -> None:
    story = TwoNodes()
    story.run(100)
    story.absent = [handed_back(100.0)]
    (act,) = story.recovery.decide(story.absent, 101.0)
    story.recovery.answered({"7_0": record(restarts=1, nodes=("n3",))}, 102.0)
    story.recovery.done(act.key, act.kind, act.job, "slurmctld is away", 101.5)
    story.answer = [record(restarts=1, nodes=("n3",))]
    assert story.run(200) == []


def test_without_an_agent_on_another_node_nothing_tells_the_node_from_the_deployment() -> None:
    """A bad deployment on one node would wait in the queue for ever."""
    story = Story(tasks=1)
    story.recovery.up("a/0", "7_0", "n1")
    story.run(100)
    story.absent = [handed_back(100.0)]
    story.answer = [record("requeued", "PENDING", reason="BeginTime", restarts=1)]
    assert story.run(400) == []


def test_where_the_job_is_over_it_is_submitted_off_that_node() -> None:
    story = TwoNodes(requeue=False)
    story.run(100)
    story.absent = [handed_back(100.0)]
    story.answer = [record("completed")]
    assert [kind for _, kind in story.run(130)] == ["resubmit"]
    assert story.acts[0][1].exclude == ("n1",)


def test_it_waits_for_no_turn_but_its_budget_is_that_of_any_rebuild() -> None:
    """A task that fails wherever it runs must not circle for ever."""
    story = TwoNodes(tasks=3)
    times = []
    for _ in range(8):
        begin = story.now
        story.absent = [handed_back(begin)]
        story.answer = [record("requeued", "PENDING", reason="BeginTime", restarts=1)]
        times += story.run(begin + 20)
        story.recovery.up("a/0", "7_0", "n1")
        story.absent = []
        story.run(begin + 30)
    assert [kind for _, kind in times] == ["requeue"] * 5
    assert all(when % 30 == 1 for when, _ in times)
    assert any("a/0" in alert for alert in story.recovery.alerts())


def test_a_broker_that_died_in_between_does_it_and_one_that_died_afterwards_does_not_do_it_again() -> None:
    for excluded in (False, True):
        memory = Memory()
        memory.apply(Agent.of(handed_back(50.0), None, 50.0))
        memory.placed["a/0"] = "7_0"
        if excluded:
            memory.apply(Excluded(at=51.0, node="n1", why="a/0"))
        carried = next(view for view, _ in memory.carried() if view.key == "a/0")
        assert carried.suspect
        story = Story(memory=memory)
        story.recovery.up("a/1", "7_1", "n2")
        story.absent = [carried]
        story.answer = [record("requeued", "PENDING", restarts=1)]
        assert [kind for _, kind in story.run(60)] == ([] if excluded else ["requeue"])
