"""The head rank's socket: only the agent that adopted it is heard, one message after the other, in order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from exahpc.replica.mouth import Mouth
from exahpc.wire.messages import Abort, Admit, Admits, Adopt, Message

Ctx = zmq.Context[Any]


@pytest.fixture
def ctx() -> Iterator[Ctx]:
    made: Ctx = zmq.Context()
    yield made
    made.destroy(linger=0)


def admit(sequence: int) -> Admit:
    return Admit(sequence=sequence, ids=[1], new=1, position=0, seed=0, stream=0, stop_ids=[])


def say(sock: zmq.Socket[Any], *messages: Message) -> None:
    for message in messages:
        sock.send(msgspec.msgpack.encode(message))


def hear(mouth: Mouth, count: int) -> list[Message]:
    heard: list[Message] = []
    while len(heard) < count:
        assert mouth.poll(30.0), heard
        while (message := mouth.receive()) is not None:
            heard.append(message)
    return heard


def test_sequences_that_came_together_are_received_one_by_one_and_in_order(tmp_path: Path, ctx: Ctx) -> None:
    mouth, agent = Mouth(tmp_path / "s", ctx), ctx.socket(zmq.DEALER)
    agent.connect(f"ipc://{tmp_path / 's'}")
    together = Admits([admit(2), admit(3)])
    say(agent, Adopt("a"), admit(1), together, Abort(2), Admits([]), admit(4))
    assert hear(mouth, 6) == [Adopt("a"), admit(1), admit(2), admit(3), Abort(2), admit(4)]
    mouth.close()


def test_an_agent_that_was_replaced_is_not_heard(tmp_path: Path, ctx: Ctx) -> None:
    mouth = Mouth(tmp_path / "s", ctx)
    old, new = ctx.socket(zmq.DEALER), ctx.socket(zmq.DEALER)
    for sock, name in ((old, "old"), (new, "new")):
        sock.connect(f"ipc://{tmp_path / 's'}")
        say(sock, Adopt(name))
        assert hear(mouth, 1) == [Adopt(name)]
    say(old, Admits([admit(1), admit(2)]), Adopt("old"))  # the last word shows that what came before it was read
    assert hear(mouth, 1) == [Adopt("old")]
    mouth.close()
