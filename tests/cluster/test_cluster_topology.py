"""Replicas that span nodes on a network whose switches do not follow the nodes' names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import DevCluster
from tests.cluster.deployed import deployed, devcluster, home
from tests.live import Live

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(300)]

LEAF_OF = {"tp1": "even", "tp2": "odd", "tp3": "even", "tp4": "odd"}
NETWORK = r"SwitchName=even Nodes=tp[1,3]\nSwitchName=odd Nodes=tp[2,4]\nSwitchName=spine Switches=even,odd"
TOML = """
[slurm]
partition = "main"
time = "1:00:00"
[head]
entries = 1
[[pool]]
name = "four"
pipeline_parallel = 4
nodes_per_replica = 4
max_sequences = 4
[[pool]]
name = "two"
replicas = 2
pipeline_parallel = 2
nodes_per_replica = 2
max_sequences = 4
slurm.switches = "1@1:00"
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[DevCluster]:
    with devcluster("tp", 4, DEVCLUSTER_TOPOLOGY=NETWORK) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with home(layers=4) as made:
        yield made


def stages(live: Live, pool: str, task: int) -> list[str]:
    """The node of each stage of a task's replica, as its ranks tell in the log."""
    (log,) = (live.folder.path / "logs" / f"{pool}-{task}").glob(f"replica-{task}.*.log")
    told = re.findall(r"stage (\d+) of \d+, rank 0 of 1 on \S+ of (\S+)", log.read_text())
    return [node for _, node in sorted(told)]


def test_stages_follow_the_switches_and_small_replicas_stay_behind_one(nodes: DevCluster, place: Path) -> None:
    """Slurm numbers ranks by the nodes' names, by which each hand-over of the four would cross the spine."""
    with deployed(nodes, place, "wired", TOML) as live:
        assert stages(live, "four", 0) == ["tp1", "tp3", "tp2", "tp4"]
        for task in (0, 1):
            found = stages(live, "two", task)
            assert len(found) == 2
            assert len({LEAF_OF[node] for node in found}) == 1
        assert len(live.stream("hello", 20)) == 20
