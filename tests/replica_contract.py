"""What every replica keeps to on its local socket, real or emulated: laws for test modules to inherit.

A module that does has fixtures `step` (a `Step`) and `agent` (a `Peer` that has adopted it) for a replica of
pool "a", slot 3, incarnation 2: 4 sequences, 2,400 tokens of KV cache, a context of CONTEXT tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import msgspec

from exahpc.wire.messages import (
    Abort,
    Admit,
    Adopt,
    Message,
    NoRoom,
    ReplicaBeat,
    ReplicaHello,
    ReplicaToAgent,
    StopReplica,
    Tokens,
)
from tests.dialled import Dialled

CONTEXT = 1200


class Step(Protocol):
    """A replica's processes."""

    socket: Path

    def end(self, seconds: float = 300) -> int:
        """Wait for its end; the exit code."""
        ...


class Peer:
    """The agent's end of the socket."""

    def __init__(self, step: Step) -> None:
        self._link = Dialled(step.socket, 300)
        self._decode = msgspec.msgpack.Decoder(ReplicaToAgent).decode

    def send(self, *messages: Message) -> None:
        self._link.send(*messages)

    def send_raw(self, data: bytes) -> None:
        self._link.channel.send(data)

    def receive(self, seconds: float = 300) -> Any:
        assert self._link.poll(seconds), "the replica said nothing"
        return self._decode(self._link.receive())

    def until(self, kind: type[Message]) -> Any:
        while not isinstance(message := self.receive(), kind):
            pass
        return message

    def quiet(self, seconds: float) -> bool:
        return not self._link.poll(seconds)

    def collect(self, *admits: Admit) -> dict[int, tuple[list[int], str]]:
        """Run these sequences to their ends."""
        self.send(*admits)
        tokens: dict[int, list[int]] = {a.sequence: [] for a in admits}
        reasons: dict[int, str] = {}
        while len(reasons) < len(admits):
            message = self.until(Tokens)
            for sequence, token in message.tokens:
                tokens[sequence].append(token)
            reasons |= dict(message.ended)
        return {a.sequence: (tokens[a.sequence], reasons[a.sequence]) for a in admits}


def greedy(sequence: int, ids: list[int], new: int, stop: list[int] | None = None) -> Admit:
    return Admit(sequence=sequence, ids=ids, new=new, position=0, seed=0, stream=0, stop_ids=stop or [])


class Laws:
    """For a module that inherits them: `class TestContract(Laws)`."""

    def test_whoever_adopts_it_is_told_what_it_holds(self, step: Step, agent: Peer) -> None:
        agent.send(Adopt("again"))
        hello = agent.until(ReplicaHello)
        assert (hello.pool, hello.slot, hello.incarnation) == ("a", 3, 2)
        assert (hello.sequences, hello.tokens, hello.context) == (4, 2400, CONTEXT)

    def test_each_sequence_gets_its_tokens_and_one_end_also_more_than_run_at_once(self, agent: Peer) -> None:
        got = agent.collect(*(greedy(i, [5, 6, 7 + i], 1 + 3 * i) for i in range(7)))
        assert {i: (len(tokens), reason) for i, (tokens, reason) in got.items()} == {
            i: (1 + 3 * i, "length") for i in range(7)
        }

    def test_what_never_fits_is_refused_and_the_next_one_runs(self, agent: Peer) -> None:
        agent.send(greedy(1, [5] * 7000, 10), greedy(2, [5] * 1190, 20), greedy(3, [], 3))
        refused = [agent.until(NoRoom) for _ in range(3)]
        assert [(r.sequence, r.full) for r in refused] == [(1, False), (2, False), (3, False)]
        assert "7000 prompt + 10 new tokens exceed the context of 1200" in refused[0].reason
        assert agent.collect(greedy(5, [5], 2))[5][1] == "length"

    def test_an_aborted_sequence_gives_back_its_room_and_says_no_more(self, agent: Peer) -> None:
        agent.send(greedy(1, [5, 6], 1000))
        agent.until(Tokens)
        agent.send(Abort(1))
        while (beat := agent.until(ReplicaBeat)).running:
            pass
        assert (beat.waiting, beat.kv_free) == (0, 2400)
        assert agent.collect(greedy(1, [5], 2))[1][1] == "length"

    def test_beats_come_without_work(self, agent: Peer) -> None:
        first, second = agent.until(ReplicaBeat), agent.until(ReplicaBeat)
        assert (first.running, second.running) == (0, 0)

    def test_only_the_last_agent_is_heard_and_finds_nothing_running(self, step: Step, agent: Peer) -> None:
        agent.send(greedy(1, [5, 6], 1000))
        agent.until(Tokens)
        stranger = Peer(step)
        stranger.send(StopReplica(), greedy(9, [5], 2))
        stranger.send_raw(b"\xc1 not a message")
        agent.until(Tokens)
        successor = Peer(step)
        successor.send(Adopt("next"))
        successor.until(ReplicaHello)
        assert set(successor.collect(greedy(1, [7], 3), greedy(2, [8], 3))) == {1, 2}
        assert stranger.quiet(0)


def check_stop(step: Step, agent: Peer) -> None:
    """The law of the end, for a module's last test: in order, with code 0, also under work."""
    agent.send(greedy(1, [5], 1000))
    agent.until(Tokens)
    agent.send(StopReplica())
    assert step.end() == 0
    assert not step.socket.exists()
