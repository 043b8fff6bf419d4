"""What an agent sends to a replica arrives in order, whatever shares a message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from exahpc.agent import replicas
from exahpc.agent.replicas import Replica
from exahpc.agent.steps import Step
from exahpc.replica.mouth import Mouth
from exahpc.wire.messages import Abort, Admit, Message, ReplicaBeat, ReplicaHello


def admit(sequence: int) -> Admit:
    return Admit(sequence=sequence, ids=[1], new=1, position=0, seed=0, stream=0, stop_ids=[])


async def until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not check():
            await asyncio.sleep(0.01)


def test_sequences_of_one_turn_arrive_in_order_and_before_what_follows(tmp_path: Path) -> None:
    async def run() -> list[Message]:
        mouth = Mouth(tmp_path / "s")
        record = SimpleNamespace(slot=0, incarnation=1, socket=str(tmp_path / "s"))
        step = cast(Step, SimpleNamespace(record=record, watch=lambda ended: None, release=lambda: None))
        replica = Replica(step, "a", lambda event: None, lambda slot, m: None, lambda slot, m: None)
        heard: list[Message] = []

        def listen() -> int:
            while (message := mouth.receive()) is not None:
                heard.append(message)
            return len(heard)

        await until(lambda: listen() == 1)
        mouth.send(ReplicaHello("p", 0, 1, 1, 1, 1, ""))
        await until(lambda: replica.hello is not None)
        for message in (admit(1), admit(2), Abort(1), admit(3), admit(4)):
            replica.send(message)
        await until(lambda: listen() == 6)
        replica.release()
        mouth.close()
        return heard[1:]

    assert asyncio.run(run()) == [admit(1), admit(2), Abort(1), admit(3), admit(4)]


class Stopping:
    """A replica that beats when it is told to, and the agent's side of it: events by their names."""

    def __init__(self, folder: Path) -> None:
        self.mouth = Mouth(folder / "s")
        record = SimpleNamespace(slot=0, incarnation=1, socket=str(folder / "s"))
        step = cast(Step, SimpleNamespace(record=record, watch=lambda ended: None, release=lambda: None))
        self.events: list[str] = []
        self.replica = Replica(step, "a", self._emit, lambda slot, m: None, lambda slot, m: None)

    def _emit(self, event: object) -> None:
        self.events.append(type(event).__name__)

    async def heard(self, message: Message | None = None) -> None:
        """Until the agent has said something, and has heard this."""
        await until(lambda: self.mouth.poll(0))
        while self.mouth.receive() is not None:
            pass
        if message is not None:
            await self.beat(message)

    async def beat(self, message: Message) -> None:
        before = len(self.events)
        assert self.mouth.send(message)
        await until(lambda: len(self.events) > before)


IDLE, BUSY = ReplicaBeat(0, 0, 10, 1, 1), ReplicaBeat(1, 0, 10, 1, 1)


@pytest.mark.parametrize(
    ("beats", "lost"), [([IDLE], True), ([IDLE, BUSY], False), ([BUSY, IDLE], True)], ids=["idle", "busy", "again"]
)
def test_only_a_replica_that_called_itself_idle_must_not_be_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beats: list[Message], lost: bool
) -> None:
    monkeypatch.setattr(replicas, "SILENT_SECONDS", 0.2)

    async def run() -> list[str]:
        stand = Stopping(tmp_path)
        await stand.heard(IDLE)  # crosses the adoption: it may not know of it
        for beat in beats:
            await stand.beat(beat)
        await (until(lambda: "LinkLost" in stand.events) if lost else asyncio.sleep(0.6))
        stand.replica.release()
        stand.mouth.close()
        return stand.events

    assert ("LinkLost" in asyncio.run(run())) is lost


def test_a_beat_that_crosses_work_does_not_call_the_replica_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "SILENT_SECONDS", 0.2)

    async def run() -> list[str]:
        stand = Stopping(tmp_path)
        await stand.heard(IDLE)
        await stand.beat(IDLE)
        stand.replica.send(admit(1))
        await stand.beat(IDLE)
        await asyncio.sleep(0.6)  # a long step
        stand.replica.release()
        stand.mouth.close()
        return stand.events

    assert "LinkLost" not in asyncio.run(run())
