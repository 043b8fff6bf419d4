"""A replica that lives but does nothing: its requests go on elsewhere, and it is replaced."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.live import Live, Load, processes_of, until

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(400)]


def rank_of(pid: int) -> str:
    """ "" for a process that is no MPI rank."""
    pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    values = dict(pair.split(b"=", 1) for pair in pairs if b"=" in pair)
    return (values.get(b"OMPI_COMM_WORLD_RANK") or values.get(b"PMI_RANK") or b"").decode()


def runs(live: Live) -> bool:
    agent = live.agent("b", 0)
    return agent is not None and any(replica.running for replica in agent.replicas)


def said(live: Live, *words: str) -> list[str]:
    lines = (live.folder.path / "logs" / "head" / "broker.log").read_text(errors="replace").splitlines()
    return [line for line in lines if all(word in line for word in words)]


@pytest.mark.case("B36")
def test_a_stopped_rank_costs_no_request_and_its_replica_is_found_silent_and_replaced(local: Live) -> None:
    before = local.incarnation("b", 0, 0)
    assert before
    processes = [int(p.split()[0]) for p in processes_of(local.folder.path) if "--pool b" in p]
    (second,) = [pid for pid in processes if rank_of(pid) == "1"]
    load = Load(local, streams=6, tokens=400)
    until("the replica has work", lambda: runs(local))
    os.kill(second, signal.SIGSTOP)  # the head rank and its link live on
    with ThreadPoolExecutor(20) as threads:
        texts = list(threads.map(lambda number: local.stream(f"request {number}", 20), range(20)))
    assert all(len(text) == 20 for text in texts)
    until(
        "it is told by its silence", lambda: said(local, f"b/0 slot 0.{before}:", "-> restarting", "no step for")
    )
    load.stop()  # before the wait: on two cores the load would starve whatever starts
    until("another incarnation serves", lambda: local.incarnation("b", 0, 0) > before, 150)
    until("it is healthy", lambda: (agent := local.agent("b", 0)) is not None and not agent.health)
    for prompt in {prompt for prompt, _ in load.texts}:
        assert {text for p, text in load.texts if p == prompt} == {local.stream(prompt, 400)}
