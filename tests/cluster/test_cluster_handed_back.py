"""A task whose node is suspect hands itself back, and Slurm runs it elsewhere under its id."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.conftest import DevCluster
from tests.cluster.deployed import deployed, devcluster, home
from tests.live import Load, until

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(400)]

TOML = """
[slurm]
partition = "main"
time = "1:00:00"
[[pool]]
name = "a"
replicas = 2
max_sequences = 8
slurm.gres = "gpu:tile:7"
[head]
placement = "local"
interface = "hb-br"
entries = 1
[recovery]
restarts = 0
beat_seconds = 1.0
[walltime]
successors = "off"
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[DevCluster]:
    with devcluster("hb", 3) as cluster:
        yield cluster


def test_a_task_whose_restarts_are_spent_comes_back_under_its_id_on_another_node(nodes: DevCluster) -> None:
    with home() as made, deployed(nodes, made, "back", TOML) as live:
        before = live.agent("a", 1)
        assert before is not None
        first = live.incarnation("a", 1, 1)
        load = Load(live, streams=2, tokens=200)
        nodes.exec(before.node, "pkill", "-9", "-f", "exahpc[.]replica.*--pool a")
        until("the task is back", lambda: live.incarnation("a", 1, 1) > first, 150)
        load.stop()
        after = live.agent("a", 1)
        assert after is not None
        assert after.job == before.job
        assert after.node not in ("", before.node)
        assert f"ExcNodeList={before.node} " in nodes.run("scontrol", "-o", "show", "job", after.job)
        assert load.texts
