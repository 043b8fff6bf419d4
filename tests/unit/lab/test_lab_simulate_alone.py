"""In a simulation, too, a suspect request has its replica for itself."""

from __future__ import annotations

from typing import Any, cast

import pytest

from exahpc.agent.service import Meter
from exahpc.entry.fleet import Agent
from exahpc.lab.emulated.model import Batch, Latency
from exahpc.lab.simulate.gateway import Gateway
from exahpc.lab.simulate.outcomes import Client
from exahpc.lab.simulate.relay import Relay
from exahpc.lab.simulate.replica import Replica
from exahpc.lab.simulate.room import Room
from exahpc.lab.simulate.scenario import Rollout
from exahpc.lab.simulate.timeline import Timeline
from exahpc.wire.messages import ReplicaHello, Submit

AGENT = cast(Agent, None)


class Entry:
    """Notes when what came."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.heard: dict[str, tuple[str, float]] = {}
        self.first: dict[str, float] = {}

    def _note(self, what: str, message: Any) -> None:
        self.heard[message.request] = what, self._timeline.now

    def done(self, _: Agent, message: Any) -> None:
        self._note("done", message)

    def failed(self, _: Agent, message: Any) -> None:
        self._note("failed", message)

    def busy(self, _: Agent, message: Any) -> None:
        self._note("busy", message)

    def frame(self, _: Agent, message: Any) -> None:
        self.first.setdefault(message.request, self._timeline.now)


class Scene:
    """One replica of eight places."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.entry = Entry(self.timeline)
        self.relay = Relay(self.timeline, "", Rollout(at=0.0), lambda: 1.0, Room(self.timeline, 1.0, {}))
        hello = ReplicaHello("a", 0, 1, 8, 4096, 4096, "")
        self.replica = Replica(hello, Batch(Latency(), 8, 4096), Meter(32, memory=60.0))
        self.relay.serve(self.replica)

    def ask(self, name: str, *, alone: bool = False, new: int = 50) -> None:
        message = Submit(name, 1, 0, 1, "completion", b"", stream=True, seed=0, created=0, alone=alone)
        client = Client(self.timeline.now, 64, new)
        self.relay.submit(cast(Gateway, self.entry), AGENT, message, client)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_it_begins_when_the_replica_is_empty_and_nobody_joins_it(scene: Scene) -> None:
    scene.ask("before", new=100)
    scene.timeline.run(0.5)
    scene.ask("suspect", alone=True)
    scene.ask("late")
    scene.ask("second suspect", alone=True)
    assert [scene.entry.heard[name][0] for name in ("late", "second suspect")] == ["busy", "busy"]
    assert scene.replica.load.sequences == 8, "there is no place for another"
    scene.timeline.run(30.0)
    ended = scene.entry.heard
    assert ended["before"][0] == ended["suspect"][0] == "done"
    assert scene.entry.first["suspect"] > ended["before"][1]
    scene.ask("afterwards")
    scene.timeline.run(60.0)
    assert ended["afterwards"][0] == "done"
    assert scene.replica.load.sequences == 0


def test_who_only_waited_is_not_blamed_for_the_replicas_end(scene: Scene) -> None:
    scene.ask("runs", new=500)
    scene.ask("suspect", alone=True)
    scene.relay.lost(0, "killed", own_exit=True)
    assert {name: what for name, (what, _) in scene.entry.heard.items()} == {"runs": "failed", "suspect": "busy"}


def test_one_that_leaves_while_it_waits_holds_nobody_up(scene: Scene) -> None:
    scene.ask("runs")
    scene.ask("suspect", alone=True)
    scene.relay.cancel("suspect")
    scene.ask("next")
    scene.timeline.run(30.0)
    assert {name: what for name, (what, _) in scene.entry.heard.items()} == {"runs": "done", "next": "done"}


def test_one_that_runs_and_leaves_lets_the_next_in(scene: Scene) -> None:
    scene.ask("suspect", alone=True, new=500)
    scene.timeline.run(1.0)
    assert "suspect" in scene.entry.first
    scene.relay.cancel("suspect")
    scene.ask("next")
    scene.timeline.run(30.0)
    assert scene.entry.heard["next"][0] == "done"
