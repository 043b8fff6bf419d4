"""Which tasks run: load over pools, tasks parked and woken, node-hours, and what another broker takes over."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from exahpc.broker.budget import Account
from exahpc.broker.fleet import Fleet
from exahpc.broker.journal import decode, encode
from exahpc.broker.memory import Agent, AnyRecord, Memory, Spent
from exahpc.broker.moving import AWAY_SECONDS
from exahpc.broker.parking import Parking
from exahpc.broker.policies import Policies
from exahpc.broker.release import Work
from exahpc.broker.values import NO_WORD, Changed, FleetAction, JobWord, Tell, Up
from exahpc.deployment.policy import Budget, Scaling
from exahpc.deployment.spec import Deployment, Model, Pool, Recovery
from exahpc.wire import messages as m
from exahpc.wire.folder import Folder

IDLE, START = 60.0, 900.0
SCALING = Scaling(least=0, tokens_per_replica=1000, queue_seconds=5.0, idle_seconds=IDLE, pause_seconds=10.0)


def pool(name: str, replicas: int, scaling: Scaling = SCALING) -> Pool:
    return Pool(name=name, replicas=replicas, max_sequences=8, scaling=scaling)


def deployment(*pools: Pool, hours: float | None = None) -> Deployment:
    return Deployment(
        name="t",
        model=Model(path="/m"),
        pool=pools,
        recovery=Recovery(ready_seconds=START),
        budget=Budget(node_hours=hours),
    )


class World:
    """A fleet and its policies; agents come and go as tests say. now: seconds."""

    def __init__(self, made: Deployment, memory: Memory | None = None, now: float = 0.0) -> None:
        self.now, self.deployment, self.memory = now, made, memory or Memory()
        fresh = memory is None
        self.fleet = Fleet(made, 1, now, self.memory.carried())
        self.policies = Policies(made, self.fleet, now, spent=self.memory.spent)
        self.drained: list[str] = []
        self.incarnations: dict[str, int] = {}
        self.act(self.policies.begin(now, fresh=fresh))

    def act(self, actions: Iterable[FleetAction]) -> None:
        for action in actions:
            match action:
                case Tell(peer=peer, message=m.DrainAgent(requeue=requeue)):
                    assert not requeue
                    self.drained.append(peer.decode())
                case Changed(view=view, route=route):
                    self.memory.apply(Agent.of(view, route, self.now))
                case Up(view=view):
                    self.act(self.policies.up(view, self.now))

    def hello(self, key: str, phase: m.ReplicaPhase = "ready") -> None:
        name, _, task = key.rpartition("/")
        self.incarnations[key] = self.incarnations.get(key, 0) + 1
        replicas = [m.ReplicaState(int(task), 1, phase)]
        self.act(
            self.fleet.hello(
                key.encode(),
                m.AgentHello(
                    name, int(task), self.incarnations[key], f"n{task}", "tcp://x:1", "", 0, 1, replicas, []
                ),
                self.now,
            )
        )

    def runs(self, key: str, sequences: int) -> None:
        state = m.ReplicaState(int(key.rpartition("/")[2]), 1, "ready", running=sequences)
        self.act(self.fleet.beat(key.encode(), m.AgentBeat(1, [state]), self.now))

    def gone(self, key: str) -> None:
        self.act(self.fleet.gone(key.encode(), m.AgentGone("drained", False), self.now))

    def load(self, tokens: int = 0, waiting: int = 0, oldest: float = 0.0) -> None:
        beat = m.EntryBeat(0, waiting, 0, 0, 0, 0, tokens, oldest)
        self.policies.entry(b"e", beat, self.now)

    def tick(self, seconds: float = 1.0) -> None:
        self.now += seconds
        for key in self.incarnations:  # whoever is alive is heard
            self.fleet.beat(key.encode(), m.AgentBeat(1, []), self.now)
        self.act(self.fleet.tick(self.now))
        self.act(self.policies.tick(self.now))
        if (spent := self.policies.account.tick(self.fleet.nodes, self.now)) is not None:
            self.memory.apply(spent)

    def wanted(self) -> list[str]:
        return [view.key for view, *_ in self.fleet.snapshot() if not view.parked]

    @property
    def asleep(self) -> bool:
        self.fleet.table()
        return self.fleet.current().asleep

    def sleeping(self) -> World:
        """All that `up` started was ready, and nobody asked."""
        for key in self.wanted():
            self.hello(key)
        self.tick()
        self.tick(IDLE)
        for key in list(self.drained):
            self.gone(key)
        self.tick()
        assert self.wanted() == []
        return self


def test_up_starts_the_warm_minimum_and_one_task_at_least_and_all_of_a_pool_that_does_not_scale() -> None:
    warm = Scaling(least=2)
    world = World(deployment(pool("a", 4), pool("b", 4, warm), pool("c", 2, Scaling())))
    assert world.wanted() == ["a/0", "b/0", "b/1", "c/0", "c/1"]
    assert (world.deployment.first_replicas, world.fleet.wanted) == (5, 5)


def test_the_first_parked_tasks_are_woken_and_the_last_ones_are_drained_and_not_missed() -> None:
    world = World(deployment(pool("a", 6)))
    world.hello("a/0")
    world.load(tokens=2500)
    world.tick()
    assert world.wanted() == ["a/0", "a/1", "a/2"]
    for key in ("a/1", "a/2"):
        world.hello(key)
    world.load(tokens=900)
    for _ in range(8):
        world.load(tokens=900)
        world.tick(9.0)
    assert (world.wanted(), world.drained) == (["a/0", "a/1"], ["a/2"])
    world.gone("a/2")
    assert [view.key for view in world.fleet.absent()] == []


def test_the_table_says_asleep_until_the_first_replica_is_back() -> None:
    world = World(deployment(pool("a", 2)))
    assert not world.asleep  # it comes up for the first time
    world.sleeping()
    assert world.asleep
    world.load(tokens=30, waiting=1, oldest=0.5)
    world.tick()
    assert (world.wanted(), world.asleep) == (["a/0"], True)
    world.hello("a/0", "loading")
    world.tick()
    assert world.asleep
    world.hello("a/0")
    world.tick()
    assert not world.asleep


def test_the_first_table_of_a_restarted_broker_says_asleep_when_all_was() -> None:
    before = World(deployment(pool("a", 2))).sleeping()
    assert World(before.deployment, before.memory, before.now).asleep


def test_a_pool_that_stands_keeps_the_deployment_awake() -> None:
    world = World(deployment(pool("a", 2), pool("b", 1, Scaling())))
    world.hello("b/0")
    world.hello("a/0")
    world.tick()
    world.tick(IDLE)
    assert (world.wanted(), world.asleep) == (["b/0"], False)


def test_load_belongs_to_the_pool_that_runs_it() -> None:
    world = World(deployment(pool("a", 8), pool("b", 8)))
    for key in ("a/0", "b/0"):
        world.hello(key)
    world.runs("b/0", 8)
    world.load(tokens=4000)
    world.tick()
    assert world.wanted() == ["a/0", "b/0", "b/1", "b/2", "b/3"]


def test_requests_that_wait_long_bring_more_of_the_pool_that_is_full_only() -> None:
    world = World(deployment(pool("a", 8), pool("b", 8)))
    for key in ("a/0", "b/0"):
        world.hello(key)
    world.runs("b/0", 8)
    world.load(tokens=600, waiting=2, oldest=6.0)
    world.tick()
    assert world.wanted() == ["a/0", "b/0", "b/1"]


def test_rows_of_a_batch_wake_replicas_too() -> None:
    world = World(deployment(pool("a", 8))).sleeping()
    world.policies.work = Work(rows=10)
    world.tick()
    assert len(world.wanted()) == 3  # 10 rows of 256 tokens


def test_an_entry_that_reconnects_does_not_count_twice() -> None:
    world = World(deployment(pool("a", 8)))
    world.hello("a/0")
    world.load(tokens=1000)
    world.policies.entry_left(b"e")
    world.policies.entry(b"f", m.EntryBeat(1, 0, 0, 0, 0, 0, 1000, 0.0), world.now)
    world.tick()
    assert world.wanted() == ["a/0"]


def test_a_broker_that_takes_over_wants_what_its_predecessor_wanted() -> None:
    world = World(deployment(pool("a", 6)))
    world.hello("a/0")
    world.load(tokens=2500)
    world.tick()
    heir = Memory()
    for record in decode(b"".join(encode(r) for r in world.memory.records(world.now)))[0]:
        heir.apply(record)
    assert World(world.deployment, heir, world.now + 5).wanted() == ["a/0", "a/1", "a/2"]
    asleep = World(deployment(pool("a", 6))).sleeping()
    after = World(asleep.deployment, asleep.memory, asleep.now + 5)
    after.tick()
    assert (after.wanted(), after.asleep) == ([], True)


def test_without_budget_nothing_is_woken_lost_nodes_are_not_replaced_and_nobody_is_told_to_wait() -> None:
    world = World(deployment(pool("a", 4), pool("b", 2, Scaling()), hours=0.5))
    for key in ("a/0", "b/0", "b/1"):
        world.hello(key)
    world.tick(10 * 60)
    world.tick(1)
    assert world.policies.account.exhausted
    assert "budget of 0.5 node-hours is used up" in world.policies.notes(world.now)[-1]
    world.load(tokens=50_000, waiting=9, oldest=30.0)
    world.policies.said = lambda view: JobWord(over="its job is over")
    world.gone("b/1")
    world.tick()
    assert "a/1" not in world.wanted()
    assert "b/1" not in world.wanted()
    for key in ("a/0", "b/0"):
        world.gone(key)
    world.tick()
    assert (world.wanted(), world.asleep, list(world.fleet.absent())) == ([], False, [])


@pytest.mark.parametrize("word", [NO_WORD, JobWord(over="its job is over"), JobWord(taken=True)])
def test_without_budget_an_agent_that_starts_again_in_its_job_is_still_wanted(word: JobWord) -> None:
    world = World(deployment(pool("b", 2, Scaling()), hours=0.1))
    for key in ("b/0", "b/1"):
        world.hello(key)
    world.tick(10 * 60)
    world.tick(1)
    assert world.policies.account.exhausted
    world.policies.said = lambda view: word
    world.gone("b/1")
    world.tick(20)
    assert ("b/1" in world.wanted()) is (word == NO_WORD)
    world.tick(AWAY_SECONDS)
    assert "b/1" not in world.wanted()


def test_node_hours_add_up_over_brokers_and_are_told_once_a_minute() -> None:
    account = Account(10.0, None, 0.0)
    told: list[Spent] = []
    for now in range(1, 3601):
        if (record := account.tick(4, float(now))) is not None:
            told.append(record)
    assert account.spent == pytest.approx(4.0)
    assert len(told) == 60
    after = Account(10.0, told[-1], told[-1].at + 1800)  # half an hour without a broker
    assert after.spent == pytest.approx(told[-1].node_hours + 2.0)
    assert not after.exhausted
    assert after.tick(400, told[-1].at + 1800 + 60) is not None
    assert after.exhausted


def test_marks_say_which_tasks_are_wanted_and_no_directory_means_down(tmp_path: object) -> None:
    folder = Folder.create(tmp_path / "d", "")  # type: ignore[operator]
    parking = Parking(folder, deployment(pool("a", 3), pool("b", 1, Scaling())))
    parked = {"a/1", "a/2"}
    parking.sync(parked.__contains__)
    marks = folder.wanted_mark("a", 0).parent
    assert {path.name for path in marks.iterdir()} == {"a.0"}
    parked = {"a/0"}
    parking.sync(parked.__contains__)
    assert {path.name for path in marks.iterdir()} == {"a.1", "a.2"}
    parking.end()
    parking.end()
    assert not marks.exists()


class Life(RuleBasedStateMachine):
    """Agents come, go and are lost, load changes, brokers take over: what holds at any time."""

    @initialize(least=st.integers(0, 3), hours=st.sampled_from([None, 0.05]))
    def begin(self, least: int, hours: float | None) -> None:
        rules = Scaling(
            least=least, tokens_per_replica=1000, queue_seconds=5.0, idle_seconds=IDLE, pause_seconds=10.0
        )
        self.world = World(deployment(pool("a", 5, rules), pool("b", 2, Scaling()), hours=hours))
        self.least = least
        self.before: set[str] = set(self.world.wanted())

    @rule(task=st.integers(0, 4), phase=st.sampled_from(["loading", "ready"]))
    def comes(self, task: int, phase: m.ReplicaPhase) -> None:
        if f"a/{task}" in self.world.wanted():
            self.world.hello(f"a/{task}", phase)

    @rule(key=st.sampled_from(["a/0", "a/1", "a/2", "b/0"]))
    def goes(self, key: str) -> None:
        self.world.gone(key)

    @rule(tokens=st.integers(0, 9000), waiting=st.integers(0, 3), oldest=st.sampled_from([0.0, 6.0]))
    def asked(self, tokens: int, waiting: int, oldest: float) -> None:
        self.world.load(tokens, waiting, oldest if waiting else 0.0)

    @rule(seconds=st.sampled_from([1.0, 5.0, IDLE]))
    def passes(self, seconds: float) -> None:
        exhausted = self.world.policies.account.exhausted
        self.before = set(self.world.wanted())
        self.world.tick(seconds)
        assert not exhausted or set(self.world.wanted()) <= self.before

    @rule()
    def taken_over(self) -> None:
        records: list[AnyRecord] = list(self.world.memory.records(self.world.now))
        heir = Memory()
        for record in records:
            heir.apply(record)
        wanted, told = self.world.wanted(), self.world.incarnations
        self.world = World(self.world.deployment, heir, self.world.now)
        self.world.incarnations = told
        assert self.world.wanted() == wanted

    @invariant()
    def bounds(self) -> None:
        wanted = self.world.wanted()
        if not self.world.policies.account.exhausted:
            assert self.least <= sum(key.startswith("a/") for key in wanted) <= 5
            assert {"b/0", "b/1"} <= set(wanted)
        assert self.world.fleet.wanted == len(wanted)

    @invariant()
    def no_drained_agent_takes_traffic(self) -> None:
        self.world.fleet.table()
        routes = {f"{route.pool}/{route.task}" for route in self.world.fleet.current().agents if route.replicas}
        assert routes <= set(self.world.wanted())


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=40, stateful_step_count=30)
