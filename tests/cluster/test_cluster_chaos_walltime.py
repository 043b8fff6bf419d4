"""Chaos while the tasks of a deployment run out of time and are replaced by successors.

A batch that takes longer than a task has goes on meanwhile, and nobody does anything for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import faults
from tests.cluster.chaos import DOMAINS, Schedule
from tests.cluster.conftest import DevCluster
from tests.cluster.deployed import deployed, devcluster, home
from tests.cluster.site import DISTINCT, Site, differing
from tests.live import Live, until

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(3600)]

LIMIT_SECONDS = 300


@pytest.fixture(scope="module")
def nodes() -> Iterator[DevCluster]:
    with devcluster("cw", 8) as cluster:  # one for the head, four for replicas, and for most of their successors
        yield cluster


def deployment(name: str, model: Path, head: str) -> str:
    """A struck node is one task's, so that most of them live until their time is over."""
    text = faults.deployment(name, model, head).replace('time = "1:00:00"', f'time = "{LIMIT_SECONDS // 60}"')
    return text.replace("[head]", '[head]\nslurm.time = "1:00:00"') + "[walltime]\ndrain_seconds = 20\n"


def jobs(live: Live) -> dict[str, str]:
    """Task -> its job. All tasks live."""

    def found() -> dict[str, str] | None:
        status = live.status()
        whole = status is not None and status.ready == 4 and all(agent.alive for agent in status.agents)
        return {f"{a.pool}/{a.task}": a.job for a in status.agents} if status is not None and whole else None

    return dict(until("all are ready", found, 300))


def test_a_batch_outlives_chaos_and_the_end_of_its_tasks_time(nodes: DevCluster) -> None:
    with home(layers=2) as made:
        model = made / "models" / "tiny"
        with deployed(nodes, made, "wall", deployment("wall", model, nodes.nodes[0])) as live:
            site = Site(live, nodes)
            first, begun = jobs(live), time.monotonic()
            some, _ = site.run(DISTINCT, "undisturbed")
            rows = int(DISTINCT * 1.3 * LIMIT_SECONDS / (time.monotonic() - begun))
            wanted = {f"r{row}": some[f"r{row % DISTINCT}"] for row in range(rows)}
            number = 0
            while not number or not jobs(live).items().isdisjoint(first.items()):  # until all were replaced
                begun = time.monotonic()
                found, struck = site.run(rows, f"run-{number}", Schedule(10 + number))
                assert time.monotonic() - begun > LIMIT_SECONDS
                print(f"run {number} of {rows} rows struck: {dict(struck)}")
                assert set(struck) == set(DOMAINS)
                assert differing(model, found, wanted) == []
                number += 1
