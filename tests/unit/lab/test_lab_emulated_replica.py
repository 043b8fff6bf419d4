"""The emulated replica keeps to the contract of the real one; it is one of many in its process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from exahpc.lab.emulated.replicas import Command, Freeze, Kill, Over, Start
from exahpc.wire.folder import Folder
from exahpc.wire.messages import Adopt, ReplicaBeat, ReplicaHello, Tokens
from tests.live import until
from tests.replica_contract import CONTEXT, Laws, Peer, check_stop, greedy

TOML = f"""
name = "test"
[model]
path = "/nowhere"
name = "emulated"
context = {CONTEXT}
[launcher]
kind = "local"
[[pool]]
name = "a"
replicas = 4
max_sequences = 4
kv_tokens = 2400
"""
FAST = '{"base_seconds": 0.002, "each_seconds": 0.0, "prompt_seconds": 0.001}'


class Host:
    """The process with the replicas."""

    def __init__(self, home: Path) -> None:
        folder = Folder.create(home / "f", TOML)
        argv = [
            "-m",
            "exahpc.lab.emulated.replicas",
            "--folder",
            str(folder.path),
            "--pool",
            "a",
            "--latency",
            FAST,
        ]
        self.home = home
        self.process = subprocess.Popen(
            [sys.executable, *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def tell(self, command: Command) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(command) + b"\n")
        self.process.stdin.flush()

    def over(self) -> Over:
        """The next end of a replica."""
        assert self.process.stdout is not None
        return msgspec.json.decode(self.process.stdout.readline(), type=Over)


class Step:
    """One replica of the host."""

    def __init__(self, host: Host, slot: int, incarnation: int) -> None:
        self.host, self.slot, self.incarnation = host, slot, incarnation
        self.socket = host.home / f"s{slot}.{incarnation}"
        host.tell(Start(slot, incarnation, str(self.socket)))
        until("the socket", self.socket.exists)

    def end(self, seconds: float = 300) -> int:
        over = self.host.over()
        assert (over.slot, over.incarnation) == (self.slot, self.incarnation)
        return over.code


def adopt(step: Step) -> Peer:
    found = Peer(step)
    found.send(Adopt("test"))
    hello = found.until(ReplicaHello)
    assert hello == ReplicaHello("a", step.slot, step.incarnation, 4, 2400, CONTEXT, "emulated"), "it is labelled"
    return found


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    found = Host(tmp_path_factory.mktemp("e"))
    yield found
    found.process.kill()
    found.process.wait()


@pytest.fixture(scope="module")
def step(host: Host) -> Step:
    return Step(host, 3, 2)


@pytest.fixture
def agent(step: Step) -> Peer:
    return adopt(step)


class TestContract(Laws):
    """What a real replica keeps to."""


def test_a_killed_replica_is_gone_and_its_neighbours_are_not(host: Host, agent: Peer) -> None:
    neighbour = Step(host, 1, 7)
    other = adopt(neighbour)
    other.send(greedy(1, [5], 1000))
    other.until(Tokens)
    host.tell(Kill(1, 6))  # an older one: nothing happens
    host.tell(Kill(1, 7))
    assert neighbour.end() == -9
    assert not neighbour.socket.exists()
    assert agent.collect(greedy(1, [5], 4))[1][1] == "length"


def test_a_frozen_replica_beats_and_yields_nothing_until_it_is_well(host: Host, agent: Peer) -> None:
    agent.send(greedy(1, [5], 1000))
    agent.until(Tokens)
    host.tell(Freeze(3, True))
    heard = []
    while sum(isinstance(message, ReplicaBeat) for message in heard[-3:]) < 3:  # tokens on their way come first
        heard.append(agent.receive())
    assert heard[-1].running == 1
    host.tell(Freeze(3, False))
    agent.until(Tokens)


def test_it_ends_when_it_is_told_to(step: Step, agent: Peer) -> None:
    check_stop(step, agent)


def test_all_end_with_whoever_started_them(tmp_path: Path) -> None:
    host = Host(tmp_path)
    adopt(Step(host, 0, 1))
    assert host.process.stdin is not None
    host.process.stdin.close()
    assert host.process.wait(60) == 0
    assert not (tmp_path / "s0.1").exists()
