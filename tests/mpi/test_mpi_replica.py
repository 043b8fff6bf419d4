"""A replica as the agent sees it: real ranks, the real socket, the real ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mpi_helpers import MPIRUN, NEW, ROOT, prompts

from exahpc.wire.folder import Folder
from exahpc.wire.messages import Adopt, NoRoom, ReplicaHello
from tests.replica_contract import CONTEXT, Laws, Peer, check_stop, greedy


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


@pytest.fixture(scope="module")
def step(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Step]:
    """One 2 x 2 replica for all tests of this module; the last test ends it."""
    found = Step(deploy(tmp_path_factory.mktemp("d"), models / "llama", 2, 2), 4)
    yield found
    found.process.kill()
    found.process.wait()


@pytest.fixture
def agent(step: Step) -> Peer:
    found = Peer(step)
    found.send(Adopt("test"))
    assert found.until(ReplicaHello) == ReplicaHello("a", 3, 2, 4, 2400, CONTEXT, "")
    return found


def test_greedy_tokens_through_the_socket(agent: Peer, reference: dict[str, list[list[int]]]) -> None:
    asked = prompts(0)
    got = agent.collect(*(greedy(i, ids, new) for i, (ids, new) in enumerate(zip(asked, NEW, strict=True))))
    assert [got[i] for i in range(len(NEW))] == [(tokens, "length") for tokens in reference["llama"]]


def test_a_stop_token_ends_the_sequence_and_is_not_told(
    agent: Peer, reference: dict[str, list[list[int]]]
) -> None:
    want = reference["llama"][2]
    place = want.index(want[5])
    assert agent.collect(greedy(1, prompts(0)[2], 12, [want[5]])) == {1: (want[:place], "stop")}


class TestContract(Laws):
    """What an emulated replica keeps to, too."""


def test_ids_outside_the_vocabulary_are_refused(agent: Peer) -> None:
    agent.send(greedy(4, [999], 3))
    assert agent.until(NoRoom).sequence == 4


def test_an_idle_replica_sleeps(step: Step, agent: Peer) -> None:
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
    assert (processor_seconds() - before) / (time.monotonic() - start) < 0.25, "it spins"


def test_no_rank_has_a_file_in_shared_memory(step: Step, agent: Peer) -> None:
    for pid in step.ranks():
        maps = Path(f"/proc/{pid}/maps").read_text()
        assert [x for x in maps.splitlines() if "/dev/shm/" in x and not x.endswith("(deleted)")] == []


def test_stop_ends_all_ranks_with_code_0(step: Step, agent: Peer) -> None:
    check_stop(step, agent)
    assert "AutoTP" not in step.output()


@pytest.mark.case("B50")
@pytest.mark.parametrize("fault", ["raise@rank1:import", "exit@rank1:load", "raise@rank1:step2"])
def test_what_goes_wrong_on_one_rank_ends_the_step_with_its_traceback(
    fault: str, models: Path, tmp_path: Path
) -> None:
    step = Step(deploy(tmp_path, models / "llama", 2, 1), 2, fault)
    agent = Peer(step)
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
