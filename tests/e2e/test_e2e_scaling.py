"""To zero and back: a deployment without load ends its replicas, and the next request waits for one instead of
failing. Beside each agent an entry comes and goes with it."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.live import Live, Load, processes_of, until

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(600)]

TOML = """
name = "tide"
[model]
path = "{model}"
dtype = "float32"
context = 2048
[[pool]]
name = "a"
replicas = 2
max_sequences = 2
[pool.scaling]
least = 0
tokens_per_replica = 40
idle_seconds = 2
pause_seconds = 1
[head]
entries = 1
entries_on_nodes = 1
[walltime]
drain_seconds = 20
[launcher]
kind = "local"
"""


@pytest.fixture
def tide(tiny: Path) -> Iterator[Live]:
    with tempfile.TemporaryDirectory(prefix="exahpc-e2e-") as home:
        live = Live(Path(home), "tide")
        live.up(TOML.format(model=tiny))
        try:
            yield live
        finally:
            live.run("down", "tide", check=False)
        until("every process of the deployment is gone", lambda: not processes_of(live.folder.path), 20)


def asleep(live: Live) -> bool:
    """No replica and no agent runs, and entries know why."""
    left = processes_of(live.folder.path)
    if any("exahpc.replica" in line or "exahpc.agent" in line for line in left):
        return False
    endpoint = live.folder.endpoint()
    assert endpoint is not None
    told = httpx.get(endpoint.url.replace("/v1", "/health")).json()
    return bool(told == {"status": "asleep", "ready": 0, "wanted": 0})


def entries(live: Live) -> dict[str, str]:
    """Node -> url, as `exahpc url --all` tells."""
    lines = live.run("url", "tide", "--all").stdout.splitlines()
    return {node: url for url, node in (line.split("\t") for line in lines)}


def test_to_zero_and_back_on_the_first_request(tide: Live) -> None:
    until("all is asleep", lambda: asleep(tide), 120)
    found = tide.status()
    assert found is not None
    assert (found.wanted, [agent.parked for agent in found.agents]) == (0, [True, True])
    assert tide.run("status", "tide").returncode == 0
    for line in processes_of(tide.folder.path):
        if "-m exahpc.broker" in line:
            os.kill(int(line.split()[0]), signal.SIGKILL)
    until("another broker knows what is wanted", lambda: (s := tide.status()) and s.epoch > found.epoch, 60)
    assert asleep(tide)

    texts: list[str] = []
    held = threading.Thread(target=lambda: texts.append(tide.stream("held, not refused", 100)))
    held.start()
    until("a replica is brought up", lambda: tide.ready() > 0, 120)
    held.join(120)
    assert len(texts[0]) > 50

    load = Load(tide, streams=2, tokens=200)
    until("the second replica comes too", lambda: tide.ready() == 2, 120)
    ((_, beside),) = [(node, url) for node, url in entries(tide).items() if node != "head"]
    answer = httpx.get(f"{beside}/models", headers={"Authorization": f"Bearer {tide.key}"})
    assert answer.json()["data"][0]["id"] == tide.model()
    load.stop()
    until("all is asleep again", lambda: asleep(tide), 120)
    until("the entries beside agents are gone", lambda: list(entries(tide)) == ["head"], 30)
