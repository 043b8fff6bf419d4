"""Laws of succession on a virtual supercomputer: time limits, queue waits, spare nodes, and what breaks."""

from __future__ import annotations

import random

import pytest

from tests.sim.world import BOOT, Job, World

LIMIT, SPREAD, LOAD = 3600, 600, 60


def ending_together(
    seed: int, *, tasks: int = 256, spare: float = 0.05, requeue: bool = True, allowed: bool = True
) -> World:
    """All tasks end within SPREAD seconds; a submission waits a minute in the mean, five at most, when nodes are
    free (exponentially distributed)."""
    dice = random.Random(seed)

    def limit(job: Job) -> int:
        return LIMIT + (dice.randint(0, SPREAD) if job.id.startswith("1_") else 0)

    def wait() -> int:
        return min(300, 1 + int(dice.expovariate(1 / 60)))

    world = World(
        tasks,
        tasks + int(spare * tasks) + 1,
        seed,
        requeue=requeue,
        allowed=allowed,
        limit=limit,
        wait=wait,
        load=LOAD,
    )
    world.run(BOOT + LOAD + 5)
    assert len(world.routed()) == tasks
    return world


def lives(world: World) -> list[int]:
    """Jobs that have not ended, of each task that has any."""
    counts: dict[int, int] = {}
    for job in world.jobs.values():
        if not job.ended:
            counts[job.task] = counts.get(job.task, 0) + 1
    return list(counts.values())


@pytest.mark.parametrize(
    ("seed", "tasks"), [(1, 96), *(pytest.param(seed, 256, marks=pytest.mark.long) for seed in range(2, 6))]
)
def test_when_all_tasks_end_within_ten_minutes_capacity_stays_with_a_twentieth_of_spare_nodes(
    seed: int, tasks: int
) -> None:
    world = ending_together(seed, tasks=tasks)
    lowest, most = world.tasks, 0
    for _ in range(LIMIT + SPREAD):
        world.step()
        lowest = min(lowest, len(world.routed()))
        most = max(most, max(lives(world)))
    assert lowest >= 0.95 * world.tasks
    assert most <= 3, "the current one, its successor, and one that drains"
    assert all(job.state != "TIMEOUT" for job in world.jobs.values()), "nobody ran into its limit"
    assert {kind for _, kind, _ in world.history} == {"succeed"}, "nothing was requeued or submitted besides"
    assert world.breaches == []


def test_without_a_spare_node_every_task_still_comes_back_and_lives_once() -> None:
    world = ending_together(3, tasks=32, spare=0.0)
    world.run(LIMIT + SPREAD)
    world.run(400)
    assert len(world.routed()) >= 0.8 * world.tasks
    assert max(lives(world)) <= 3
    assert world.breaches == []


@pytest.mark.parametrize(("requeue", "allowed"), [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize("seed", [4, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(5, 15))])
def test_whatever_breaks_while_tasks_are_succeeded_each_lives_once_in_the_end(
    seed: int, requeue: bool, allowed: bool
) -> None:
    world = ending_together(seed, tasks=32, spare=0.5, requeue=requeue, allowed=allowed)
    for _ in range(LIMIT):
        chance = world.random.random()
        if chance < 0.001 and len(world.dead) < 8:
            world.dead[world.random.choice([node for node in world.nodes if node not in world.dead])] = world.now
        elif chance < 0.003:
            world.cut[world.random.choice(world.nodes)] = world.now + world.random.randint(5, 60)
        elif chance < 0.006:
            world.start_broker()
        elif chance < 0.008:
            world.slurm_down_until = world.now + world.random.randint(5, 60)
        world.step()
    world.cut.clear()
    world.limit = lambda job: 0
    for job in world.jobs.values():
        job.end = 0
    world.run(1500)
    assert len(world.routed()) == world.tasks
    assert world.routed() == world.serving()
    assert world.breaches == []
