"""Health at full size by a virtual clock: the broker's real fleet and policies, and replicas that fall ill."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import dataclass
from typing import Any

import pytest

from exahpc.broker.fleet import Fleet
from exahpc.broker.policies import Policies
from exahpc.broker.values import Decided, Tell, Up
from exahpc.deployment.spec import Deployment, Model, Pool
from exahpc.wire import messages as m

BEAT, STEP, LOAD = 2.0, 0.25, 20.0
TBT, TTFT = 0.024, 0.054
FOUND = 13.0  # seconds from the last token to the table without it


@dataclass
class Virtual:
    """One replica under load. slower: times the usual latency; stopped: since when it does nothing."""

    slot: int
    incarnation: int = 1
    ready_at: float = 0.0
    served: int = 0
    tokens: int = 0
    slower: float = 1.0
    stopped: float | None = None


class World:
    """tasks agents with `each` replicas; every agent beats at its own moment, every replica is busy."""

    def __init__(self, tasks: int, each: int, seed: int = 0) -> None:
        self.random = random.Random(seed)
        pool = Pool(name="a", replicas=tasks * each, replicas_per_task=each)
        self.deployment = Deployment(name="sim", model=Model(path="/m"), pool=(pool,))
        self.now = 0.0
        self.fleet = Fleet(self.deployment, 1, self.now)
        self.policies = Policies(self.deployment, self.fleet, self.now)
        self.tasks = [[Virtual(task * each + n) for n in range(each)] for task in range(tasks)]
        self.replicas = {r.slot: r for replicas in self.tasks for r in replicas}
        self.restarts: list[tuple[float, int]] = []
        self.said: list[str] = []
        self.out: dict[int, float] = {}  # slot -> when it left the table
        for task, replicas in enumerate(self.tasks):
            states = [self.state(r) for r in replicas]
            hello = m.AgentHello("a", task, 1, f"n{task}", f"tcp://n{task}:1", "", 0, 1, states, [])
            self.act(self.fleet.hello(self.peer(task), hello, self.now))

    def peer(self, task: int) -> bytes:
        return b"%d" % task

    def act(self, actions: list[Any]) -> None:
        for action in actions:
            match action:
                case Up():
                    self.act(self.policies.up(action.view, self.now))
                case Decided():
                    self.said.append(action.what)
                case Tell(_, m.RestartReplica()):
                    replica = self.replicas[action.message.slot]
                    assert replica.incarnation == action.message.incarnation
                    self.restarts.append((self.now, replica.slot))
                    replica.incarnation += 1
                    replica.ready_at, replica.stopped, replica.slower = self.now + LOAD, None, 1.0

    def state(self, r: Virtual) -> m.ReplicaState:
        if self.now < r.ready_at:
            return m.ReplicaState(r.slot, r.incarnation, "loading")
        age = 0.01 if r.stopped is None else self.now - r.stopped
        if r.stopped is None:
            r.served += 20
            r.tokens += 1000
        ttft, tbt = (usual * r.slower * self.random.uniform(0.7, 1.3) for usual in (TTFT, TBT))
        service = m.Service(r.served, 0, 0, ttft, tbt, 32)
        return m.ReplicaState(
            r.slot, r.incarnation, "ready", 8, 0, 1000, age, 300.0, r.tokens, service=service, step_age=age
        )

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += STEP
            for task, replicas in enumerate(self.tasks):
                moment = (task % 8) * STEP  # agents do not beat in step
                if (self.now - moment) % BEAT == 0:
                    states = [self.state(r) for r in replicas]
                    self.act(self.fleet.beat(self.peer(task), m.AgentBeat(1, states), self.now))
                    self.act(self.policies.heard(f"a/{task}", states, self.now))
            if self.now % 1 == 0:
                self.act(self.fleet.tick(self.now))
                self.act(self.policies.tick(self.now))
            self.publish()

    def publish(self) -> None:
        table = self.fleet.table()
        if table is None:
            return
        weights = {r.slot: r.weight for agent in table.agents for r in agent.replicas}
        for slot in self.replicas:
            if weights.get(slot, 0.0) == 0:
                self.out.setdefault(slot, self.now)
            else:
                self.out.pop(slot, None)

    def some(self, share: float) -> list[Virtual]:
        return self.random.sample(list(self.replicas.values()), round(share * len(self.replicas)))


@pytest.mark.parametrize("tasks", [32, 256])
def test_five_percent_fake_alive_replicas_are_all_out_in_time_restarted_and_back(tasks: int) -> None:
    world = World(tasks, 12)
    world.run(20)
    assert not world.said
    ill = world.some(0.05)
    for replica in ill:
        replica.stopped = world.now
    start = world.now
    world.run(FOUND)
    assert {replica.slot for replica in ill} == set(world.out)
    assert max(world.out.values()) - start <= FOUND
    world.run(LOAD + 10)
    assert sorted(slot for _, slot in world.restarts) == sorted(replica.slot for replica in ill)
    assert not world.out, "all are back"


def test_two_percent_slow_replicas_are_tripped_within_three_windows_and_nobody_else() -> None:
    world = World(128, 12)
    world.run(20)
    ill = world.some(0.02)
    for replica in ill:
        replica.slower = 5.0
    world.run(3 * world.deployment.health.window_seconds)
    assert {replica.slot for replica in ill} == set(world.out)
    for replica in ill:
        replica.slower = 1.0
    world.run(60)
    assert not world.out, "probed and back"
    assert not world.restarts


def test_a_whole_fleet_that_is_slow_loses_nobody() -> None:
    world = World(32, 12)
    world.run(10)
    for replica in world.replicas.values():
        replica.slower = 20.0
    world.run(60)
    assert (world.out, world.restarts, world.said) == ({}, [], [])


def test_in_a_fleet_of_two_the_silent_one_is_replaced_while_the_other_serves() -> None:
    world = World(2, 1)
    world.run(10)
    world.replicas[0].stopped = world.now
    world.run(FOUND)
    assert set(world.out) == {0}
    world.run(LOAD + 10)
    assert not world.out
    assert [slot for _, slot in world.restarts] == [0]


@pytest.mark.parametrize("share", [0.6, 1.0])
def test_a_file_system_that_hangs_for_a_while_restarts_nobody(share: float) -> None:
    world = World(32, 12)
    world.run(10)
    ill = world.some(share)
    for replica in ill:
        replica.stopped = world.now
    world.run(25)
    assert len(world.out) == 0
    for replica in ill:
        replica.stopped = None
    world.run(60)
    assert (world.out, world.restarts) == ({}, [])


def test_a_switch_that_takes_a_third_is_restarted_little_by_little() -> None:
    world = World(32, 12)
    world.run(10)
    start = world.now
    for replica in world.some(0.33):
        replica.stopped = world.now
    world.run(15)
    soon = [when for when, _ in world.restarts if when - start <= 15]
    assert 0 < len(soon) <= len(world.replicas) // 16 + 15
    world.run(240)
    assert not world.out


def test_what_the_broker_keeps_of_a_replica_is_small() -> None:
    tracemalloc.start()
    try:
        world = World(256, 12)
        held = world.run(7)
        assert held is None
        current, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert current / len(world.replicas) < 20_000, "bytes, this test's own replicas included"
