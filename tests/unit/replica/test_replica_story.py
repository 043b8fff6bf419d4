"""The head rank logs the sequences of requests whose clients asked for their story, and no others."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from exahpc.replica.head import Head
from exahpc.wire.messages import Admit, ReplicaHello, StopReplica, Tokens


class Mouth:
    """Hands over what is scripted, keeps what is said."""

    def __init__(self, *script: Any) -> None:
        self.script, self.said = list(script), list[Any]()

    def poll(self, seconds: float) -> bool:
        return bool(self.script)

    def receive(self) -> Any:
        return self.script.pop(0) if self.script else None

    def send(self, message: Any) -> bool:
        self.said.append(message)
        return True


def admit(sequence: int, request: str) -> Admit:
    return Admit(sequence, [1, 2, 3], 4, 0, 0, 0, [], request=request)


@pytest.mark.parametrize("name", ["r-1", ""])
def test_a_told_sequence_has_a_line_when_it_begins_and_one_when_it_ends(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    mouth = Mouth(admit(7, name), admit(8, ""), StopReplica())
    ended = Tokens([(7, 5), (8, 5)], [(7, "stop"), (8, "length")])
    scheduler = SimpleNamespace(running=0, waiting=0, admit=lambda _: None, done=lambda *_: ended)
    worker = SimpleNamespace(step=3, send=lambda _: None)
    hello = ReplicaHello("a", 0, 1, 4, 100, 100, "")
    head = Head(cast(Any, mouth), cast(Any, scheduler), cast(Any, worker), hello, pipelined=False)
    with caplog.at_level(logging.INFO, "exahpc"):
        head.run()
        head._finish(0, cast(Any, None))
    told = [record.__dict__["told"] for record in caplog.records]
    assert told == (
        [{"request": "r-1", "sequence": 7, "tokens": 3}, {"request": "r-1", "sequence": 7, "step": 3}]
        if name
        else []
    )
    assert mouth.said == [ended]
