"""What an agent sends to a replica arrives in order, whatever shares a message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from exahpc.agent.replicas import Replica
from exahpc.agent.steps import Step
from exahpc.replica.mouth import Mouth
from exahpc.wire.messages import Abort, Admit, Message, ReplicaHello


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
