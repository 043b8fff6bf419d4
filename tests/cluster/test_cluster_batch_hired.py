"""Batches with nodes of their own on the development cluster: what the last rows do not need is given back, and a
batch that is longer than its jobs goes on in their next lives."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exahpc.launch.hired import name_for
from tests.cluster.conftest import DevCluster, why_not
from tests.live import EXAHPC, Live, until
from tests.tiny import make_model

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(1800)]

TOML = """
name = "like"
[model]
path = "elsewhere"
dtype = "float32"
context = 16384
[slurm]
partition = "main"
time = "{time}"
[[pool]]
name = "a"
max_sequences = 4
[head]
entries = 1
slurm.time = "1:00:00"
[recovery]
beat_seconds = 1.0
[walltime]
successors = "off"
drain_seconds = 20
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[DevCluster]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    cluster = DevCluster("bh", 4)
    cluster.up()
    yield cluster
    cluster.down()


@pytest.fixture
def home() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="exahpc-hired-", dir="/var/tmp"))
    make_model(made / "tiny", layers=2, context=16384)
    yield made
    shutil.rmtree(made, ignore_errors=True)


def write(path: Path, *tokens: int) -> Path:
    """A row for each of these numbers of tokens."""
    with open(path, "w") as file:
        for row, count in enumerate(tokens):
            body: dict[str, Any] = {"model": "tiny", "prompt": f"row {row}", "max_tokens": count}
            body |= {"temperature": 0, "ignore_eos": True}
            line = {"custom_id": f"r{row}", "method": "POST", "url": "/v1/completions", "body": body}
            file.write(json.dumps(line) + "\n")
    return path


class Client:
    """One run of the command."""

    def __init__(self, home: Path, nodes: DevCluster, source: Path, *more: str, time: str = "1:00:00") -> None:
        output, like = home / "out.h5", home / "like.toml"
        like.write_text(TOML.format(time=time))
        self.live = Live(home, name_for(output), {"SLURM_CONF": nodes.conf})
        own = ("--model", str(home / "tiny"), "--like", str(like), *more, "--json")
        argv = [*EXAHPC, "batch", "run", str(source), "-o", str(output), *own]
        with open(home / "told", "w") as told, open(home / "said", "a") as said:
            self.process = subprocess.Popen(
                argv, env=self.live.env, stdin=subprocess.DEVNULL, stdout=told, stderr=said
            )
        self._home = home

    def end(self) -> dict[str, Any]:
        """Of a batch that ended well: what it told."""
        until("the client ends", lambda: self.process.poll() is not None, 600)
        assert self.process.returncode == 0, f"{(self._home / 'said').read_text()}\n{self.live.tail()}"
        ended: dict[str, Any] = json.loads((self._home / "told").read_text().splitlines()[-1])
        return ended

    def done(self) -> int:
        """Rows that have their answer."""
        found = self.live.status()
        return found.batches[0].ok if found and found.batches else 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def down(self) -> None:
        """Whatever happened: nothing stays in Slurm."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()
        if (self.live.folder.path / "deployment.toml").exists():
            self.live.run("down", self.live.name, "--seconds", "0", check=False)


def test_nodes_that_the_last_rows_do_not_need_are_given_back_before_the_end(nodes: DevCluster, home: Path) -> None:
    def tasks() -> list[str]:
        """Of the array."""
        held = nodes.run("squeue", "-h", "-r", "-o", "%i %T").splitlines()
        return [line for line in held if "_" in line and "COMPLETING" not in line]

    source = write(home / "in.jsonl", 15_000, *[4] * 200)
    client = Client(home, nodes, source, "--nodes", "3")
    try:
        until("three tasks hold nodes", lambda: len(tasks()) == 3, 60)
        until("all but the long row are done", lambda: client.done() >= 200, 200)
        until("its node is held, and that of its second lease", lambda: len(tasks()) <= 2, 120)
        found = client.live.status()
        assert found is not None
        assert found.batches[0].state == "running", "the long row still runs"
        assert sum(agent.parked for agent in found.agents) >= 1
        ended = client.end()
        assert [ended[key] for key in ("rows", "ok", "failed")] == [201, 201, 0]
        assert ended["node_hours"] > 0
        assert not nodes.run("squeue", "-h").strip(), "nothing is left in Slurm"
        assert not client.live.folder.path.exists(), "nor on disk, when every row has its answer"
    finally:
        client.down()


def test_a_batch_outlives_its_jobs_and_its_client(nodes: DevCluster, home: Path) -> None:
    """Six minutes a job: Slurm warns after four, and the task is requeued. No hand but the same command's."""

    def lives() -> int:
        shown = nodes.run("scontrol", "show", "job")
        return sum(int(count) for count in re.findall(r"Restarts=(\d+)", shown))

    source = write(home / "in.jsonl", *[400] * 5000)  # more than one life can do
    client = Client(home, nodes, source, "--nodes", "1", time="6")
    try:
        until("rows are done", client.done, 300)
        client.kill()
        until("the task was requeued without anybody", lambda: lives() >= 1, 500)
        before = client.done()
        until("it has gone on", lambda: client.done() > before, 500)
        client = Client(home, nodes, source, "--nodes", "1", time="6")
        adopted = f"going on with deployment {client.live.name}, which is up"
        until("the next client has found it", lambda: adopted in (home / "said").read_text(), 60)
        client.process.send_signal(signal.SIGTERM)
        until("it ends in order", lambda: client.process.poll() is not None, 120)
        assert client.process.returncode == 143
        assert not nodes.run("squeue", "-h").strip(), "its nodes are given back"
        (status,) = json.loads(client.live.run("batch", "status", str(home / "out.h5"), "--json").stdout)
        assert status["state"] == "stopped"
        assert before < status["ok"] < 5000
        assert status["node_hours"] > 0
    finally:
        client.down()
