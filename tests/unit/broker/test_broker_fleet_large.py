"""A broker that is restarted over 3,072 replicas of 256 agents knows all of them again."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import msgspec

from exahpc.broker.fleet import Fleet
from exahpc.broker.journal import Journal, replay
from exahpc.broker.memory import Agent, Memory, Started
from exahpc.broker.recovery import Recovery
from exahpc.broker.succession import Succession
from exahpc.broker.values import Changed, FleetAction, Up
from exahpc.deployment.spec import Deployment, Model, Pool
from exahpc.wire import messages as m

AGENTS, SLOTS = 256, 12
DEPLOYMENT = Deployment(
    name="large",
    model=Model(path="/m"),
    pool=(Pool(name="a", replicas=AGENTS * SLOTS, replicas_per_task=SLOTS),),
)


def hello(task: int, epoch: int) -> bytes:
    """As it comes over the wire."""
    replicas = [m.ReplicaState(task * SLOTS + slot, 3, "ready", running=5, kv_free=9000) for slot in range(SLOTS)]
    message = m.AgentHello("a", task, 7, f"n{task}", f"tcp://n{task}:1", f"9_{task}", 1, epoch, replicas, [1, 2])
    return msgspec.msgpack.encode(message)


def greet(fleet: Fleet, tasks: list[int], epoch: int) -> list[FleetAction]:
    actions: list[FleetAction] = []
    for task in tasks:
        message = msgspec.msgpack.decode(hello(task, epoch), type=m.AgentHello)
        actions += fleet.hello(b"%d.%d" % (epoch, task), message, 1.0)
    return actions


def test_entries_never_miss_a_route_and_every_agent_is_known_again(tmp_path: Path) -> None:
    first = Fleet(DEPLOYMENT, 1, 0.0)

    async def live() -> None:
        journal = Journal(tmp_path, 1, [], Started(at=0.0, epoch=1, host="h"))
        for action in greet(first, list(range(AGENTS)), 1):
            if isinstance(action, Changed):
                journal.append(Agent.of(action.view, action.route, 1.0))
        await journal.durable(Started(at=1.0, epoch=1, host="h"))
        journal.close()

    asyncio.run(live())
    before = first.table()
    assert before is not None
    assert sum(len(agent.replicas) for agent in before.agents) == AGENTS * SLOTS

    memory = replay(tmp_path)
    assert len(memory.agents) == AGENTS
    fleet = Fleet(DEPLOYMENT, 2, 100.0, memory.carried(), memory.replaced)
    recovery, succession = Recovery(DEPLOYMENT, memory, 100.0), Succession(DEPLOYMENT, memory, 100.0)
    assert fleet.table() is not None
    assert fleet.current().agents == before.agents, "before anybody was heard"
    tasks = list(range(AGENTS))
    random.Random(1).shuffle(tasks)
    for number, task in enumerate(tasks, 1):
        for action in greet(fleet, [task], 2):
            if isinstance(action, Up):
                recovery.up(action.view.key, action.view.job, action.view.node)
                succession.up(action.view, 100.0)
        assert fleet.expected == AGENTS - number
    assert fleet.alive == AGENTS
    assert list(fleet.absent()) == []
    assert fleet.current().agents == before.agents
    assert fleet.table() is None, "nothing has changed for entries"
    assert recovery.arrays() == {"9"}


def test_without_a_journal_the_hellos_alone_tell_all() -> None:
    fleet = Fleet(DEPLOYMENT, 2, 0.0, Memory().carried())
    greet(fleet, list(range(AGENTS)), 2)
    table = fleet.table()
    assert table is not None
    assert sum(len(agent.replicas) for agent in table.agents) == AGENTS * SLOTS
