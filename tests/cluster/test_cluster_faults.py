"""Each fault of a cluster, one at a time, under online and batch load: no request fails, no row is lost."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import faults
from tests.cluster.conftest import DevCluster, why_not
from tests.cluster.faults import FAULTS, HEAD_REQUEUED, Fault, Field
from tests.live import Live
from tests.tiny import make_model

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def field() -> Iterator[Field]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    nodes = DevCluster("fl", 6)  # one for the head, four for replicas, one to spare
    nodes.up()
    home = Path(tempfile.mkdtemp(prefix="exahpc-faults-", dir="/var/tmp"))
    live = Live(home, "faults", {"SLURM_CONF": nodes.conf})
    try:
        live.up(faults.deployment("faults", make_model(home / "models" / "tiny"), nodes.nodes[0]))
        found = Field(live, nodes, wanted=4)
        yield found
        found.close()
        live.run("down", "faults")
    finally:
        nodes.down()
        shutil.rmtree(home, ignore_errors=True)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_fault_costs_no_request_and_no_row(field: Field, fault: Fault) -> None:
    found = field.suffer(fault)
    print(found)
    assert found.requests > 0
    assert found.harmless, found


def test_a_requeued_head_costs_no_row(field: Field) -> None:
    found = field.suffer(HEAD_REQUEUED, streams=0)
    print(found)
    assert found.rows == [], found
