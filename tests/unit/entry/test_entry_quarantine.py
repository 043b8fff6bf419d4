"""Who kills replicas is found, and nobody else pays for it: entry, agents and replicas played through together.

The desk and the relays are the real ones. Replicas are played: each gives every sequence one token a step, and
ends by itself when a poisonous request has got as far as it needs to.
"""

from __future__ import annotations

import functools
import json
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exahpc.agent.relay import Relay, ToPeer, ToReplica
from exahpc.agent.tokenizer import Tokenizer
from exahpc.deployment.parse import load
from exahpc.entry.actions import Action, Connect, Finish, Refuse, Tell
from exahpc.entry.desk import Desk
from exahpc.entry.fleet import Agent
from exahpc.entry.ledger import Record
from exahpc.wire import messages as m
from tests.tiny import make_tokenizer

TOML = """
name = "unit"
[model]
path = "/nowhere/m"
context = 64
[[pool]]
name = "a"
replicas = 8
max_sequences = 4
[launcher]
kind = "local"
"""
SEQUENCES, LENGTH = 4, 10
PEER = b"entry"
RESTART = 5  # steps from a replica's end to its next incarnation
STEP = 0.1


@functools.cache
def tokenizer() -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        make_tokenizer(Path(folder))
        return Tokenizer.load(Path(folder))


@dataclass
class Node:
    """One agent with one replica. back: the step at which the replica lives again."""

    task: int
    relay: Relay
    running: dict[int, m.Admit]
    incarnation: int = 1
    back: int | None = None


class Play:
    """poison: body -> tokens after which it ends its replica."""

    def __init__(self, replicas: int, poison: dict[bytes, int], outside: bool = False) -> None:
        self.deployment = load(TOML)
        self.desk = Desk(self.deployment, random.Random(7).randrange)
        self.now, self.step_number, self.version = 0.0, 0, 0
        self.poison, self.outside = poison, outside
        self.nodes = [Node(t, Relay(self.deployment, tokenizer()), {}) for t in range(replicas)]
        self.ended: dict[str, m.Done | Any] = {}
        self.alone: list[str] = []
        self.deaths: list[set[str]] = []  # who ran when a replica ended
        self.beside: dict[str, int] = {}
        for node in self.nodes:
            node.relay.replica_up(self.hello(node))
        self.publish()

    def hello(self, node: Node) -> m.ReplicaHello:
        return m.ReplicaHello("a", node.task, node.incarnation, SEQUENCES, 64 * SEQUENCES, 64, "")

    def publish(self) -> None:
        self.version += 1
        up = [[m.Route(n.task, n.incarnation, SEQUENCES)] if n.back is None else [] for n in self.nodes]
        routes = [m.AgentRoute("a", n.task, 1, "x", r) for n, r in zip(self.nodes, up, strict=True)]
        self.perform(self.desk.table(m.FleetTable(1, self.version, routes), self.now))

    def ask(self, name: str, body: bytes, key: str = "") -> None:
        record = Record(
            name, "completion", body, stream=True, seed=1, created=1, choices=1, prompt=2, new=LENGTH, key=key
        )
        self.perform(self.desk.open(record, self.now))

    def agent(self, node: Node) -> Agent:
        return next(agent for key, agent in self.desk.router.agents.items() if key.task == node.task)

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Connect(agent=agent):
                    self.perform(self.desk.link_up(agent, self.now))
                case Tell(agent=agent, message=message):
                    node = self.nodes[agent.key.task]
                    if isinstance(message, m.Submit):
                        if message.alone:
                            self.alone.append(message.request)
                        self.carry(node, node.relay.submit(PEER, message, self.now))
                    else:
                        self.carry(node, node.relay.cancel(PEER, message.request))
                case Finish(record=record):
                    assert record.id not in self.ended
                    self.ended[record.id] = "done"
                case Refuse(record=record, error=error):
                    assert record.id not in self.ended
                    self.ended[record.id] = error
                case _:
                    raise AssertionError(action)

    def carry(self, node: Node, actions: list[Any]) -> None:
        """What a relay decided."""
        for action in actions:
            if isinstance(action, ToReplica):
                match action.message:
                    case m.Admit() as admit:
                        node.running[admit.sequence] = admit
                    case m.Abort(sequence):
                        node.running.pop(sequence, None)
                continue
            assert isinstance(action, ToPeer)
            agent, desk = self.agent(node), self.desk
            match action.message:
                case m.Frames(frames):
                    touched, more = desk.frames(agent, frames, self.now)
                    for record in touched:
                        record.take()
                    self.perform(more + desk.pump(self.now))
                case m.Done() as done:
                    assert done.completion_tokens == LENGTH
                    self.perform(desk.done(agent, done, self.now))
                case m.Failed() as failed:
                    self.perform(desk.failed(agent, failed, self.now))
                case m.Busy() as busy:
                    self.perform(desk.busy(agent, busy, self.now))

    def body_of(self, admit: m.Admit) -> bytes:
        prompt = tokenizer().decode(admit.ids[: len(admit.ids) - admit.position])
        return body(prompt)

    def step(self) -> None:
        self.step_number += 1
        self.now += STEP
        for node in self.nodes:
            if node.back is not None:
                if self.step_number >= node.back:
                    node.back, node.incarnation = None, node.incarnation + 1
                    node.relay.replica_up(self.hello(node))
                    self.publish()
                continue
            bodies = [self.body_of(admit) for admit in node.running.values()]
            done = [admit.position for admit in node.running.values()]
            if any(count >= self.poison.get(b, 99) for b, count in zip(bodies, done, strict=True)):
                self.die(node)
                continue
            tokens, ended = [], []
            for sequence, admit in list(node.running.items()):
                tokens.append((sequence, 97))
                left = admit.new - 1
                node.running[sequence] = m.Admit(
                    sequence, [*admit.ids, 97], left, admit.position + 1, 1, admit.stream, []
                )
                if left == 0:
                    ended.append((sequence, "length"))
                    del node.running[sequence]
            if tokens:
                self.carry(node, node.relay.tokens(node.task, m.Tokens(tokens, ended), self.now))  # type: ignore[arg-type]
            self.carry(node, node.relay.flush(self.now))
        self.perform(self.desk.tick(self.now))

    def die(self, node: Node) -> None:
        self.deaths.append({self.body_of(admit).decode() for admit in node.running.values()})
        node.running.clear()
        node.back = self.step_number + RESTART
        self.publish()
        gone = node.relay.replica_gone(node.task, own_exit=not self.outside, story="signal SIGSEGV")
        self.carry(node, gone)

    def run(self, steps: int = 3000) -> None:
        for _ in range(steps):
            if not self.desk.ledger.records:
                return
            self.step()
        raise AssertionError(f"{len(self.desk.ledger.records)} requests have not ended")


def body(prompt: str) -> bytes:
    return json.dumps({"model": "m", "prompt": prompt, "max_tokens": LENGTH, "stream": True}).encode()


@settings(max_examples=60, deadline=None)
@given(
    replicas=st.integers(2, 6),
    innocents=st.integers(1, 30),
    poisons=st.dictionaries(st.sampled_from(["p!", "q!", "r!"]), st.integers(0, LENGTH - 1), min_size=1),
    place=st.integers(0, 30),
)
def test_only_who_kills_replicas_is_quarantined_and_all_others_get_their_whole_answer(
    replicas: int, innocents: int, poisons: dict[str, int], place: int
) -> None:
    play = Play(replicas, {body(prompt): after for prompt, after in poisons.items()})
    asked = [f"innocent{n}" for n in range(innocents)]
    asked[place:place] = poisons
    for name in asked:
        play.ask(name, body(name))
    play.run()
    for name in asked:
        if name in poisons:
            error = play.ended[name]
            assert (error.status, error.code, error.final) == (500, "quarantined", True)
            assert error.message.count("SIGSEGV") == 3
        else:
            assert play.ended[name] == "done"
    assert len(play.deaths) <= 3 * len(poisons)
    assert play.desk.interruptions.quarantined == len(poisons)
    assert not play.desk.admission.tokens
    assert play.desk.outstanding == 0


def test_a_killer_among_many_costs_three_replicas_and_the_last_time_nobody_is_beside_it() -> None:
    play = Play(4, {body("p!"): 3})
    for n in range(12):
        play.ask(f"i{n}", body(f"i{n}"))
    play.ask("p!", body("p!"))
    play.run()
    assert len(play.deaths) == 3
    assert len(play.deaths[0]) > 1
    assert play.deaths[-1] == {body("p!").decode()}


def test_replicas_that_end_from_outside_make_nobody_suspect() -> None:
    play = Play(3, {body("p!"): 3}, outside=True)
    for n in range(6):
        play.ask(f"i{n}", body(f"i{n}"))
    play.ask("p!", body("p!"))
    play.run()
    assert play.alone == []
    assert play.ended["p!"].code == "attempts"


def test_what_was_quarantined_goes_to_no_healthy_replica_for_a_while_when_the_same_key_sends_it_again() -> None:
    play = Play(3, {body("p!"): 0})
    for number, (key, deaths) in enumerate([("one", 3), ("one", 1), ("two", 3)]):
        before = len(play.deaths)
        play.ask(f"r{number}", body("p!"), key)
        play.run()
        assert play.ended[f"r{number}"].code == "quarantined"
        assert len(play.deaths) - before == deaths
    play.now += 601.0
    play.desk.tick(play.now)
    play.ask("later", body("p!"), "one")
    play.run()
    assert len(play.ended["later"].message.split("SIGSEGV")) == 4


def test_who_comes_to_an_end_alone_is_no_suspect_any_more() -> None:
    play = Play(2, {body("p!"): 0})
    play.ask("bad", body("p!"))
    play.run()
    play.poison = {}  # the defect was mended
    for name, alone in (("good", True), ("again", False)):
        play.ask(name, body("p!"))
        play.run()
        assert play.ended[name] == "done"
        assert (name in play.alone) == alone


@pytest.mark.parametrize("length", [1, 5])
def test_requests_that_run_alone_leave_most_of_the_fleet_to_others(length: int) -> None:
    play = Play(8, {body(f"p{n}!"): 0 for n in range(length)})
    for n in range(length):
        play.ask(f"p{n}!", body(f"p{n}!"))
    while play.desk.ledger.records:
        play.step()
        running = sum(r.alone for r in play.desk.ledger.records.values() if r.replica is not None)
        assert running <= 2  # a quarter of eight
    assert all(play.ended[f"p{n}!"].code == "quarantined" for n in range(length))
