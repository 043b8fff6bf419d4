"""Nodes that no batch needs are given back, none that one needs, and in the end all."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from exahpc.broker.release import END_SECONDS, IDLE_SECONDS, Release, Work
from exahpc.broker.scaler import Change
from exahpc.broker.values import AgentView
from exahpc.deployment.policy import Budget
from exahpc.deployment.spec import Deployment, Head, Launcher, Model, Placement, Pool
from exahpc.wire.messages import ReplicaState

SEQUENCES = 4


def deployment(placement: Placement = "job") -> Deployment:
    return Deployment(
        name="d",
        model=Model(path="/m"),
        pool=(Pool(name="a", replicas=4, max_sequences=SEQUENCES),),
        head=Head(placement=placement),
        budget=Budget(release_idle=True),
    )


@dataclass
class World:
    """Four tasks of four sequences each. running: sequences by task."""

    release: Release
    now: float = 0.0
    parked: set[int] = field(default_factory=set)
    running: dict[int, int] = field(default_factory=dict)

    def tick(self, work: Work, *, may_grow: bool = True) -> list[Change]:
        tasks = [
            (
                AgentView(f"a/{task}", "a", task, "alive", 0.0, parked=task in self.parked),
                [ReplicaState(task, 1, "ready", running=self.running.get(task, 0))],
            )
            for task in range(4)
        ]
        changes = self.release.tick(work, tasks, self.now, may_grow=may_grow)
        for key, wake in changes:
            (self.parked.discard if wake else self.parked.add)(int(key[2:]))
        return changes

    def run(self, seconds: float, work: Work) -> list[Change]:
        changes = []
        for _ in range(int(seconds)):
            self.now += 1.0
            changes += self.tick(work)
        return changes


def held(rows: int, *tasks: int, waiting: int = 0) -> Work:
    return Work(rows, waiting, holders=frozenset(f"a/{task}" for task in tasks))


def test_a_task_is_given_back_when_the_others_run_all_that_is_left() -> None:
    world = World(Release(deployment(), 0.0))
    assert world.run(IDLE_SECONDS + 5, held(5, 0, 1)) == [Change("a/2", False), Change("a/3", False)]


def test_no_task_is_given_back_while_rows_wait_or_have_not_begun() -> None:
    world = World(Release(deployment(), 0.0))
    assert world.run(60, held(5, 0, 1, waiting=1)) == []
    assert world.run(60, held(2 * SEQUENCES + 1, 0, 1)) == []
    assert world.run(60, Work(0, 0, True)) == []


def test_tasks_that_start_are_left_alone_until_a_batch_has_come() -> None:
    assert World(Release(deployment(), 0.0)).run(END_SECONDS - 1, Work()) == []


def test_a_task_that_serves_somebody_is_kept() -> None:
    world = World(Release(deployment(), 0.0), running={3: 1})
    assert world.run(60, held(1, 0)) == [Change("a/1", False), Change("a/2", False)]


def test_the_task_that_holds_the_head_is_kept() -> None:
    world = World(Release(deployment("first-task"), 0.0))
    assert Change("a/0", False) not in world.run(60, held(1, 3))
    assert world.parked == {1, 2}


def test_a_pause_in_idleness_begins_the_wait_again() -> None:
    world = World(Release(deployment(), 0.0))
    for _ in range(5):
        assert world.run(IDLE_SECONDS - 1, held(1, 0)) == []
        assert world.run(1, held(1, 0, 1, 2, 3)) == []


def test_rows_that_nobody_can_run_any_more_bring_tasks_back() -> None:
    world = World(Release(deployment(), 0.0), parked={0, 1, 2, 3})
    assert world.tick(held(SEQUENCES + 1, waiting=1), may_grow=False) == []
    assert world.tick(held(SEQUENCES + 1, waiting=1)) == [Change("a/0", True), Change("a/1", True)]
    assert world.tick(held(SEQUENCES + 1, waiting=1)) == []


def test_without_work_the_deployment_ends_whether_its_batch_came_or_not() -> None:
    for work in (Work(), held(1, 0)):
        world = World(Release(deployment(), 0.0))
        world.run(10, work)
        assert not world.release.over
        began = world.now if work.rows else 0.0
        world.run(began + END_SECONDS - world.now - 1, Work())
        assert not world.release.over
        world.run(2, Work())
        assert world.release.over


def test_somebody_who_asks_meanwhile_keeps_it_up() -> None:
    world = World(Release(deployment(), 0.0), running={0: 1})
    world.run(END_SECONDS + 5, Work())
    assert not world.release.over


def test_on_one_machine_no_task_is_ended() -> None:
    local = msgspec.structs.replace(deployment(), launcher=Launcher(kind="local"))
    assert World(Release(local, 0.0)).run(60, held(1, 0)) == []


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 40), st.sets(st.integers(0, 3))), min_size=1, max_size=60
    )
)
def test_what_is_kept_always_has_room_for_the_rows_or_is_all_there_is(
    story: list[tuple[int, int, set[int]]],
) -> None:
    world = World(Release(deployment(), 0.0))
    for rows, waiting, holders in story:
        work = held(rows, *(holders - world.parked), waiting=min(rows, waiting))
        world.run(20, work)
        kept = 4 - len(world.parked)
        assert kept == 4 or kept * SEQUENCES >= rows
