"""Laws of the agent's link to the broker, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from exahpc.agent.control import Control
from exahpc.wire import link
from exahpc.wire.folder import Folder, HeadRecord
from exahpc.wire.messages import AgentBeat, AgentHello, LeaseProgress, ReplicaState, ToBroker, Welcome


class Rig:
    """A control with its own idea of epoch and replicas, and a broker that only listens."""

    def __init__(self, path: Path) -> None:
        self.folder = Folder.create(path / "d", "")
        self.epoch = 0
        self.states = [ReplicaState(0, 1, "loading"), ReplicaState(1, 1, "ready")]
        self.heard: list[Any] = []
        self.said: list[Any] = []
        self.peers: list[bytes] = []
        self.ctx = link.context()
        self.broker = self.start_broker(1)
        self.control = Control(
            self.ctx, self.folder, self.hello, lambda: self.states, lambda: self.epoch, self.said.append, 60.0
        )
        self.control.open()

    def start_broker(self, epoch: int) -> link.Server:
        def on_message(peer: bytes, message: Any) -> None:
            self.peers.append(peer)
            self.heard.append(message)

        server = link.Server(link.context(), self.folder.fleet_key(), "127.0.0.1", ToBroker, on_message)
        self.folder.publish_head(HeadRecord(epoch, server.address, "here", 1))
        return server

    def hello(self) -> AgentHello:
        return AgentHello("a", 0, 1, "n", "tcp://x", "", 0, self.epoch, self.states, [])

    async def until(self, check: Callable[[], Any]) -> None:
        for _ in range(1000):
            if check():
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"waited in vain; heard {self.heard}")

    def close(self) -> None:
        self.control.close()
        self.broker.close()


def progress(lease: int) -> LeaseProgress:
    return LeaseProgress(lease, "b", "j", 0, 1, 1, 0, False)


def test_a_beat_carries_only_what_changed_and_a_change_does_not_wait(tmp_path: Path) -> None:
    async def story() -> None:
        rig = Rig(tmp_path)
        await rig.until(lambda: rig.heard)
        assert rig.heard == [rig.hello()]
        rig.states = [ReplicaState(0, 1, "ready"), rig.states[1]]
        rig.control.beat_soon()
        rig.control.beat_soon()  # the same turn of the loop: one beat
        await rig.until(lambda: len(rig.heard) > 1)
        rig.control.beat_soon()  # nothing changed: a sign of life
        await rig.until(lambda: len(rig.heard) > 2)
        assert rig.heard[1:] == [AgentBeat(1, [ReplicaState(0, 1, "ready")]), AgentBeat(2, [])]
        rig.close()

    asyncio.run(story())


def test_reports_made_without_a_broker_follow_the_next_hello_in_order(tmp_path: Path) -> None:
    async def story() -> None:
        rig = Rig(tmp_path)
        rig.control.report([progress(1), progress(2)])
        await rig.until(lambda: len(rig.heard) >= 3)
        assert rig.heard == [rig.hello(), progress(1), progress(2)]
        rig.close()

    asyncio.run(story())


def test_the_welcome_sets_the_pace_and_reaches_the_core(tmp_path: Path) -> None:
    async def story() -> None:
        rig = Rig(tmp_path)
        rig.control.close()
        rig.control = Control(
            rig.ctx, rig.folder, rig.hello, lambda: rig.states, lambda: rig.epoch, rig.said.append, 0.3
        )
        rig.control.open()
        await rig.until(lambda: rig.heard)
        rig.broker.send(rig.peers[-1], Welcome(1, 0.02))
        await rig.until(lambda: sum(isinstance(m, AgentBeat) for m in rig.heard) > 5)
        assert rig.said == [Welcome(1, 0.02)]
        rig.close()

    asyncio.run(story())


def test_the_address_of_a_broker_that_was_replaced_is_not_used(tmp_path: Path) -> None:
    async def story() -> None:
        rig = Rig(tmp_path)
        await rig.until(lambda: rig.heard)
        rig.epoch = 2  # a younger broker was heard of
        rig.control.reconnect()
        old = len(rig.heard)
        await asyncio.sleep(0.3)
        assert len(rig.heard) == old
        young = rig.start_broker(2)
        await rig.until(lambda: len(rig.heard) > old)
        assert rig.heard[-1] == rig.hello()
        young.close()
        rig.close()

    asyncio.run(story())
