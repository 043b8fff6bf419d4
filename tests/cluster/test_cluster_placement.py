"""The head where it is no job of its own: in the first task of a pool, or as a process of this machine.

This machine reaches the nodes through the cluster's bridge, as a login node does through its fabric's interface.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from exahpc.slurm.jobbook import JobBook
from tests.cluster.conftest import DevCluster
from tests.cluster.deployed import deployed, devcluster, home
from tests.live import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

TOML = """
[slurm]
partition = "main"
time = "1:00:00"
[[pool]]
name = "a"
max_sequences = 4
[head]
placement = "{placement}"
entries = 1
{more}
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[DevCluster]:
    with devcluster("pl", 2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with home() as made:
        yield made


@pytest.mark.parametrize(("placement", "more"), [("first-task", ""), ("local", 'interface = "pl-br"')])
def test_a_head_without_a_job_of_its_own_serves_comes_back_and_leaves_nothing(
    nodes: DevCluster, place: Path, placement: str, more: str
) -> None:
    with deployed(nodes, place, "placed", TOML.format(placement=placement, more=more)) as live:
        assert JobBook.load(live.folder.path).head is None
        (job,) = nodes.run("squeue", "-h", "-r", "-o", "%F").split()
        assert [job] == JobBook.load(live.folder.path).pools["a"]
        record, agent = live.folder.head(), live.agent("a", 0)
        assert record is not None
        assert agent is not None
        assert (record.host == agent.node) is (placement == "first-task")
        text = live.stream("hello", 20)
        assert len(text) == 20

        kill = ("pkill", "-9", "-f", f"exahpc.broker --folder {live.folder.path}")
        nodes.exec(record.host, *kill) if placement == "first-task" else nodes.run(*kill)
        until("a broker of a higher epoch answers", lambda: (s := live.status()) and s.epoch > record.epoch, 30)
        until("the replica is ready again", lambda: live.ready() == 1, 60)
        assert live.stream("hello", 20) == text
