"""Laws of the fleet and its recovery on a virtual supercomputer of a few hundred nodes."""

from __future__ import annotations

import itertools

import pytest

from exahpc.broker.fleet import CARRY_SECONDS
from exahpc.broker.limits import Limits
from tests.sim.world import BEAT, BOOT, DETECT, LOAD, RETURN, World

UP = BOOT + LOAD + 5
NOTICED = int(5 * BEAT) + 2


def fresh(
    tasks: int = 256, nodes: int = 300, seed: int = 1, *, requeue: bool = True, allowed: bool = True
) -> World:
    world = World(tasks, nodes, seed, requeue=requeue, allowed=allowed)
    world.run(UP)
    assert len(world.routed()) == tasks
    return world


def check(world: World) -> None:
    """What holds in every story."""
    assert world.breaches == []
    assert not world.superseded
    for (epoch, first), (later, second) in itertools.pairwise(world.queries):
        assert later > epoch or second - first >= 10
    limits = Limits.of_fleet(world.tasks)
    rebuilds = [when for when, kind, _ in world.history if kind != "cancel"]
    for first in rebuilds:
        within = sum(first <= when < first + 60 for when in rebuilds)
        assert within <= limits.burst + 60 / limits.refill_seconds + 1, "rebuilds are paced"


def test_a_quiet_fleet_asks_slurm_once_a_minute_and_changes_nothing() -> None:
    world = fresh()
    table, queries = world.table, len(world.queries)
    world.run(600)
    assert world.table is table
    assert len(world.queries) - queries <= 11
    assert world.history == []
    check(world)


def test_a_dead_node_leaves_the_table_within_the_beats_and_slurm_alone_brings_its_task_back() -> None:
    world = fresh()
    world.dead[world.jobs["1_7"].node] = world.now
    world.run(NOTICED)
    assert len(world.routed()) == 255
    world.run(DETECT + RETURN + UP)
    assert (7, 2) in world.routed()
    assert len(world.routed()) == 256
    assert world.history == [], "Slurm requeues by itself: nothing is submitted or requeued twice"
    check(world)


@pytest.mark.parametrize(("requeue", "allowed"), [(True, True), (False, True), (True, False)])
def test_a_silent_node_that_slurm_takes_for_healthy_costs_one_rebuild_elsewhere(
    requeue: bool, allowed: bool
) -> None:
    world = fresh(requeue=requeue, allowed=allowed)
    node = world.jobs["1_7"].node
    world.cut[node] = world.now + 10_000
    world.run(300)
    assert len(world.routed()) == 256
    assert all(job.node != node for job in world.jobs.values() if not job.ended)
    kinds = [kind for _, kind, _ in world.history]
    assert kinds == (["requeue"] if requeue and allowed else ["cancel", "resubmit"])
    check(world)


def test_without_requeue_a_dead_node_costs_one_resubmission_into_the_slot() -> None:
    world = fresh(requeue=False)
    world.dead[world.jobs["1_7"].node] = world.now
    world.run(200)
    assert len(world.routed()) == 256
    assert [(kind, key) for _, kind, key in world.history] == [("resubmit", "a/7")]
    check(world)


def test_a_short_partition_of_a_node_costs_its_routes_and_nothing_else() -> None:
    world = fresh()
    world.cut[world.jobs["1_7"].node] = world.now + 20
    world.run(15)
    assert len(world.routed()) == 255
    world.run(10)
    assert len(world.routed()) == 256
    world.run(300)
    assert world.history == []
    check(world)


def test_a_restarted_broker_never_shows_entries_a_smaller_fleet() -> None:
    world = fresh()
    for _ in range(20):
        world.start_broker()
        for _ in range(7):
            world.step()
            assert len(world.routed()) == 256
    world.run(300)
    assert world.history == []
    check(world)


def test_a_node_that_died_with_the_broker_leaves_the_table_after_the_carry_time() -> None:
    world = fresh()
    world.dead[world.jobs["1_7"].node] = world.now
    world.start_broker()
    world.run(int(CARRY_SECONDS) + 2)
    assert len(world.routed()) == 255
    world.run(DETECT + RETURN + UP)
    assert len(world.routed()) == 256
    check(world)


def test_a_cut_off_head_does_not_tear_down_a_fleet_that_works() -> None:
    world = fresh()
    for node in world.nodes:
        world.cut[node] = world.now + 400
    world.run(390)
    assert world.routed() == set()
    assert world.history == [], "half of the fleet silent at once: our own fault, most likely"
    world.run(20)
    assert len(world.routed()) == 256
    check(world)


def test_a_slurm_that_cannot_be_asked_means_wait_not_failed() -> None:
    world = fresh(requeue=False)
    world.slurm_down_until = world.now + 600
    world.cut[world.jobs["1_7"].node] = world.now + 10_000
    world.run(590)
    assert world.history == []
    world.run(400)
    assert len(world.routed()) == 256
    check(world)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("requeue", "allowed"), [(True, True), (False, True), (True, False)])
def test_whatever_breaks_the_fleet_is_whole_again_and_nothing_ever_runs_twice(
    seed: int, requeue: bool, allowed: bool
) -> None:
    world = fresh(tasks=64, nodes=100, seed=seed, requeue=requeue, allowed=allowed)
    for _ in range(900):
        dice = world.random.random()
        if dice < 0.01:
            living = [node for node in world.nodes if node not in world.dead]
            if len(world.dead) < 20:
                world.dead[world.random.choice(living)] = world.now
        elif dice < 0.02:
            world.cut[world.random.choice(world.nodes)] = world.now + world.random.randint(5, 120)
        elif dice < 0.025:
            world.start_broker()
        elif dice < 0.027:
            world.slurm_down_until = world.now + world.random.randint(5, 60)
        world.step()
        for task, incarnation in world.routed():
            assert incarnation <= world.incarnations[task]
    world.cut.clear()
    world.run(1500)
    living = {job.task: job for job in world.jobs.values() if not job.ended}
    assert len([job for job in world.jobs.values() if not job.ended]) == len(living), "one job a task"
    assert world.routed() == world.serving()
    assert len(world.routed()) == 64
    check(world)
