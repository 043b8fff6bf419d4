"""Chaos while the tasks of a deployment run out of time and are replaced by successors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import faults
from tests.cluster.chaos import Schedule
from tests.cluster.conftest import DevCluster
from tests.cluster.deployed import deployed, devcluster, home
from tests.cluster.site import Site, differing
from tests.live import Live, until

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(3600)]

ROWS = 2000


@pytest.fixture(scope="module")
def nodes() -> Iterator[DevCluster]:
    with devcluster("cw", 6) as cluster:
        yield cluster


def deployment(name: str, model: Path, head: str) -> str:
    """Tasks of six minutes; a task and its successor may share a node."""
    text = faults.deployment(name, model, head).replace('time = "1:00:00"', 'time = "6"')
    text = text.replace("gpu:tile:7", "gpu:tile:5").replace("[head]", '[head]\nslurm.time = "1:00:00"')
    return text + "[walltime]\ndrain_seconds = 20\n"


def jobs(live: Live) -> set[str]:
    """Of agents that live."""
    found = live.status()
    return {agent.job for agent in found.agents if agent.alive} if found else set()


def test_a_batch_outlives_chaos_and_the_end_of_its_tasks_time(nodes: DevCluster) -> None:
    with home(layers=2) as made:
        model = made / "models" / "tiny"
        with deployed(nodes, made, "wall", deployment("wall", model, nodes.nodes[0])) as live:
            site = Site(live, nodes)
            wanted, _ = site.run(ROWS, "undisturbed")
            until("all are ready", lambda: live.ready() == 4, 300)
            first = jobs(live)
            number = 0
            while not number or not (now := jobs(live)) or now & first:  # until all have been replaced
                found, struck = site.run(ROWS, f"run-{number}", Schedule(10 + number))
                print(f"run {number} struck: {dict(struck)}")
                assert differing(model, found, wanted) == []
                number += 1
            until("all are ready again", lambda: live.ready() == 4, 300)
