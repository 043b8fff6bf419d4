"""A replica as the agent sees it: real ranks, the real socket, the real ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from mpi_helpers import MPIRUN, NEW, ROOT, prompts

from exahpc.wire.folder import Folder
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

CONTEXT = 1200


def deploy(where: Path, model: Path, tp: int, pp: int) -> Path:
    """A deployment's folder for one replica of this grid."""
    text = f"""
name = "test"
[model]
path = "{model}"
dtype = "float32"
context = {CONTEXT}
[launcher]
kind = "local"
[[pool]]
name = "a"
tensor_parallel = {tp}
pipeline_parallel = {pp}
max_sequences = 4
kv_tokens = 2400
"""
    return Folder.create(where / "f", text).path


class Step:
    """Ranks started as the local launcher starts them."""

    def __init__(self, folder: Path, n: int, fault: str = "") -> None:
        self.socket = folder / "s"
        arguments = ["--folder", folder, "--pool", "a", "--slot", 3, "--incarnation", 2, "--socket", self.socket]
        self.log = open(folder / f"log{fault}", "w+")  # noqa: SIM115 - lives as long as the step
        self.process = subprocess.Popen(
            [*MPIRUN, "-n", str(n), sys.executable, "-m", "exahpc.replica", *map(str, arguments)],
            stdout=self.log,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**os.environ, "EXAHPC_FAULT": fault},
        )

    def output(self) -> str:
        self.log.seek(0)
        return self.log.read()

    def end(self, seconds: float = 300) -> int:
        """The step's exit code."""
        return self.process.wait(seconds)

    def ranks(self) -> list[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in children.split()]


class Agent:
    """The other end of the socket."""

    def __init__(self, step: Step) -> None:
        self._sock = zmq.Context.instance().socket(zmq.DEALER)
        self._sock.identity = os.urandom(8)
        self._sock.linger = 0
        self._sock.connect(f"ipc://{step.socket}")
        self._decode = msgspec.msgpack.Decoder(ReplicaToAgent).decode

    def send(self, *messages: Message) -> None:
        for message in messages:
            self._sock.send(msgspec.msgpack.encode(message))

    def send_raw(self, data: bytes) -> None:
        self._sock.send(data)

    def receive(self, seconds: float = 300) -> Any:
        assert self._sock.poll(int(seconds * 1000)), "the replica said nothing"
        return self._decode(self._sock.recv())

    def until(self, kind: type[Message]) -> Any:
        while not isinstance(message := self.receive(), kind):
            pass
        return message

    def quiet(self, seconds: float) -> bool:
        return not self._sock.poll(int(seconds * 1000))

    def collect(self, *admits: Admit) -> dict[int, tuple[list[int], str]]:
        """Run these sequences to their ends."""
        self.send(*admits)
        tokens: dict[int, list[int]] = {a.sequence: [] for a in admits}
        reasons: dict[int, str] = {}
        while len(reasons) < len(admits):
            message = self.until(Tokens)
            for sequence, token in message.tokens:
                tokens[sequence].append(token)
            reasons.update(message.ended)
        return {n: (tokens[n], reasons[n]) for n in tokens}


def greedy(sequence: int, ids: list[int], new: int, stop_ids: list[int] | None = None) -> Admit:
    return Admit(sequence, ids, new, 0, 0, 0, stop_ids or [])


@pytest.fixture(scope="module")
def step(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Step]:
    """One 2 x 2 replica for all tests of this module; the last test ends it."""
    found = Step(deploy(tmp_path_factory.mktemp("d"), models / "llama", 2, 2), 4)
    yield found
    found.process.kill()
    found.process.wait()


@pytest.fixture
def agent(step: Step) -> Agent:
    found = Agent(step)
    found.send(Adopt("test"))
    assert found.until(ReplicaHello) == ReplicaHello("a", 3, 2, 4, 2400, CONTEXT, "")
    return found


def test_greedy_tokens_through_the_socket(agent: Agent, reference: dict[str, list[list[int]]]) -> None:
    asked = prompts(0)
    got = agent.collect(*(greedy(i, ids, new) for i, (ids, new) in enumerate(zip(asked, NEW, strict=True))))
    assert [got[i] for i in range(len(NEW))] == [(tokens, "length") for tokens in reference["llama"]]


def test_a_stop_token_ends_the_sequence_and_is_not_told(
    agent: Agent, reference: dict[str, list[list[int]]]
) -> None:
    want = reference["llama"][2]
    place = want.index(want[5])
    assert agent.collect(greedy(1, prompts(0)[2], 12, [want[5]])) == {1: (want[:place], "stop")}


def test_what_never_fits_is_refused_and_the_next_one_runs(agent: Agent) -> None:
    agent.send(greedy(1, [5] * 7000, 10), greedy(2, [5] * 1190, 20), greedy(3, [], 3), greedy(4, [999], 3))
    refused = [agent.until(NoRoom) for _ in range(4)]
    assert [r.sequence for r in refused] == [1, 2, 3, 4]
    assert "7000 prompt + 10 new tokens exceed the context of 1200" in refused[0].reason
    assert agent.collect(greedy(5, [5], 2))[5][1] == "length"


def test_an_aborted_sequence_gives_back_its_room(agent: Agent) -> None:
    agent.send(greedy(1, [5, 6], 1000))
    agent.until(Tokens)
    agent.send(Abort(1))
    while (beat := agent.until(ReplicaBeat)).running:
        pass
    assert (beat.waiting, beat.kv_free) == (0, 2400)
    assert agent.collect(greedy(1, [5], 2))[1][1] == "length"


def test_only_the_last_agent_is_heard(step: Step, agent: Agent) -> None:
    agent.send(greedy(1, [5, 6], 1000))
    agent.until(Tokens)
    stranger = Agent(step)
    stranger.send(StopReplica(), greedy(9, [5], 2))
    stranger.send_raw(b"\xc1 not a message")
    agent.until(Tokens)
    successor = Agent(step)
    successor.send(Adopt("next"))
    successor.until(ReplicaHello)
    assert set(successor.collect(greedy(1, [7], 3), greedy(2, [8], 3))) == {1, 2}
    assert stranger.quiet(0)


def test_an_idle_replica_sleeps(step: Step, agent: Agent) -> None:
    def processor_seconds() -> float:
        ticks = 0
        for pid in step.ranks():
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    agent.collect(greedy(1, [5], 2))
    time.sleep(1)
    before, start = processor_seconds(), time.monotonic()
    time.sleep(4)
    assert (processor_seconds() - before) / (time.monotonic() - start) < 0.03


def test_no_rank_has_a_file_in_shared_memory(step: Step, agent: Agent) -> None:
    for pid in step.ranks():
        maps = Path(f"/proc/{pid}/maps").read_text()
        assert [x for x in maps.splitlines() if "/dev/shm/" in x and not x.endswith("(deleted)")] == []


def test_stop_ends_all_ranks_with_code_0(step: Step, agent: Agent) -> None:
    agent.send(greedy(1, [5], 1000))
    agent.until(Tokens)
    agent.send(StopReplica())
    assert step.end() == 0, step.output()
    assert not step.socket.exists()
    assert "AutoTP" not in step.output()


@pytest.mark.case("B50")
@pytest.mark.parametrize("fault", ["raise@rank1:import", "exit@rank1:load", "raise@rank1:step2"])
def test_what_goes_wrong_on_one_rank_ends_the_step_with_its_traceback(
    fault: str, models: Path, tmp_path: Path
) -> None:
    step = Step(deploy(tmp_path, models / "llama", 2, 1), 2, fault)
    agent = Agent(step)
    agent.send(Adopt("test"), greedy(1, [5], 100))
    try:
        assert step.end() not in (0, None)
    finally:
        step.process.kill()
    assert "Traceback" in step.output()
    assert ("SystemExit: 0" if "exit" in fault else "RuntimeError: fault asked for") in step.output()


def test_a_world_of_the_wrong_size_says_so(models: Path, tmp_path: Path) -> None:
    step = Step(deploy(tmp_path, models / "llama", 2, 2), 1)
    assert step.end() not in (0, None)
    assert "the MPI world has 1 ranks, but tensor_parallel x pipeline_parallel = 2 x 2 = 4" in step.output()
