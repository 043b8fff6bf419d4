"""A batch file while ranks, agents, nodes and the broker are killed at random: every row once, and the same.

An undisturbed run on the same deployment says what the answers are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster import faults
from tests.cluster.chaos import DOMAINS, Schedule
from tests.cluster.conftest import DevCluster
from tests.cluster.deployed import deployed, devcluster, home
from tests.cluster.site import Answers, Site, differing
from tests.live import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]

ROWS = 2000
FEW = 240


@pytest.fixture(scope="module")
def nodes() -> Iterator[DevCluster]:
    with devcluster("ch", 6) as cluster:  # one for the head, four for replicas, one to spare
        yield cluster


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    with home(layers=2) as found:
        yield found


@pytest.fixture(scope="module")
def site(nodes: DevCluster, made: Path) -> Iterator[Site]:
    toml = faults.deployment("chaos", made / "models" / "tiny", nodes.nodes[0])
    with deployed(nodes, made, "chaos", toml) as live:
        yield Site(live, nodes)
        until("the fleet is whole again", lambda: live.ready() == 4, 300)


@pytest.fixture(scope="module")
def undisturbed(site: Site) -> Callable[[int], Answers]:
    """The answers to a file of so many rows."""
    found: dict[int, Answers] = {}

    def of(rows: int) -> Answers:
        if rows not in found:
            found[rows], _ = site.run(rows, f"undisturbed-{rows}")
        return found[rows]

    return of


def test_whatever_is_killed_each_row_is_there_once_and_the_same(
    site: Site, made: Path, undisturbed: Callable[[int], Answers]
) -> None:
    wanted = undisturbed(FEW)
    found, struck = site.run(FEW, "few", Schedule(0))
    print(f"struck: {dict(struck)}")
    assert set(struck) == set(DOMAINS)
    assert differing(made / "models" / "tiny", found, wanted) == []


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_two_thousand_rows_outlive_chaos(
    site: Site, made: Path, undisturbed: Callable[[int], Answers], seed: int
) -> None:
    wanted = undisturbed(ROWS)
    found, struck = site.run(ROWS, f"seed-{seed}", Schedule(seed))
    print(f"seed {seed} struck: {dict(struck)}")
    assert set(struck) == set(DOMAINS)
    assert differing(made / "models" / "tiny", found, wanted) == []
