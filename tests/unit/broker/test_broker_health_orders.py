"""From what health wants to what agents, entries and the next broker are told."""

from __future__ import annotations

from typing import Any

import msgspec

from exahpc.broker.fleet import Fleet
from exahpc.broker.illness import HandBack, Restart, Weigh
from exahpc.broker.memory import Agent, Memory
from exahpc.broker.policies import Policies
from exahpc.broker.values import Changed, Decided, Tell, Up
from exahpc.deployment.spec import Deployment, Launcher, Model, Pool
from exahpc.wire import messages as m

DEPLOYMENT = Deployment(
    name="d",
    model=Model(path="/m"),
    pool=(Pool(name="a", replicas=4, replicas_per_task=2), Pool(name="b", replicas=4, pipeline_parallel=2)),
    launcher=Launcher(kind="local"),
)


def broker(epoch: int = 1, memory: Memory | None = None) -> tuple[Fleet, Policies]:
    fleet = Fleet(DEPLOYMENT, epoch, 0.0, memory.carried() if memory else ())
    return fleet, Policies(DEPLOYMENT, fleet, 0.0)


def hello(fleet: Fleet, policies: Policies, pool: str, task: int, slots: tuple[int, ...]) -> None:
    states = [m.ReplicaState(slot, 1, "ready") for slot in slots]
    message = m.AgentHello(pool, task, 1, "n", "tcp://n:1", "", 0, 1, states, [])
    for action in fleet.hello(f"{pool}{task}".encode(), message, 0.0):
        if isinstance(action, Up):
            policies.up(action.view, 0.0)


def weights(fleet: Fleet) -> dict[int, tuple[float, bool]]:
    table = fleet.table() or fleet.current()
    return {r.slot: (r.weight, r.probe) for agent in table.agents for r in agent.replicas if agent.pool == "a"}


def silent(slot: int) -> m.ReplicaState:
    return m.ReplicaState(slot, 1, "ready", running=1, token_age=11.0, step_age=11.0)


def test_a_silent_replica_loses_its_weight_in_the_table_and_its_agent_is_ordered_to_restart_it() -> None:
    fleet, policies = broker(epoch=7)
    hello(fleet, policies, "a", 0, (0, 1))
    actions = policies.heard("a/0", [silent(1)], 1.0)
    orders = [a for a in actions if isinstance(a, Tell)]
    assert [(order.peer, type(order.message)) for order in orders] == [(b"a0", m.RestartReplica)]
    message: Any = orders[0].message
    assert (message.epoch, message.slot, message.incarnation) == (7, 1, 1)
    assert weights(fleet) == {0: (1.0, False), 1: (0.0, False)}
    said = [action.what for action in actions if isinstance(action, Decided)]
    assert len(said) == 2, "one line a decision"
    assert said[0].startswith("replica a/0 slot 1.1: healthy -> silent: no step for 11 s")
    assert [state for _, state, _ in policies.ill("a/0")] == ["restarting"]
    assert policies.notes(1.0)[-1] == "health: 1 restarting of 2 replicas"


def test_what_a_broker_had_out_of_traffic_its_successor_keeps_out() -> None:
    fleet, policies = broker()
    hello(fleet, policies, "a", 0, (0, 1))
    memory = Memory()
    for order in (Weigh("a/0", 0, 1, 0.1, True, "probing"), Weigh("a/0", 1, 1, 0.5, False, "degraded")):
        for action in policies._care([order]):
            if isinstance(action, Changed):
                record = Agent.of(action.view, action.route, 1.0)
                memory.apply(msgspec.json.decode(msgspec.json.encode(record), type=Agent))
    fleet, policies = broker(2, memory)
    hello(fleet, policies, "a", 0, (0, 1))
    assert weights(fleet) == {0: (0.1, True), 1: (0.5, False)}
    assert [state for _, state, _ in policies.ill("a/0")] == ["tripped", "degraded"]
    for second in range(1, 40):
        policies.tick(float(second))
    assert weights(fleet) == {0: (0.1, True), 1: (1.0, False)}


def test_a_task_on_a_suspect_node_drains_and_is_handed_back() -> None:
    fleet, policies = broker()
    hello(fleet, policies, "a", 1, (2, 3))
    decided, tell = policies._care([HandBack("a/1", "ill again")])
    assert isinstance(decided, Decided)
    assert isinstance(tell, Tell)
    drain: Any = tell.message
    assert (type(drain), drain.requeue, drain.seconds) == (m.DrainAgent, True, DEPLOYMENT.walltime.drain_seconds)


def test_an_agent_that_is_away_is_ordered_nothing() -> None:
    _, policies = broker()
    assert policies._care([Restart("a/0", 0, 1, "silent")]) == []


def test_pools_of_another_shape_are_no_peers_but_stand_in() -> None:
    fleet, policies = broker()
    hello(fleet, policies, "a", 0, (0,))
    hello(fleet, policies, "b", 0, (0,))
    agents = policies._health._agents
    assert agents["a/0"].group != agents["b/0"].group
    assert agents["a/0"].traffic == agents["b/0"].traffic
    policies.heard("a/0", [silent(0)], 1.0)
    assert weights(fleet) == {0: (0.0, False)}
