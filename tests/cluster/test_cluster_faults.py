"""Each fault of a cluster, one at a time, under online and batch load: no request fails, no row is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster import faults
from tests.cluster.deployed import deployed, devcluster, home
from tests.cluster.faults import FAULTS, Fault, Field

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def field() -> Iterator[Field]:
    with devcluster("fl", 6) as nodes, home(layers=4) as made:  # one for the head, four for replicas, one to spare
        toml = faults.deployment("faults", made / "models" / "tiny", nodes.nodes[0])
        with deployed(nodes, made, "faults", toml) as live:
            found = Field(live, nodes, wanted=4)
            yield found
            found.close()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_fault_costs_no_request_and_no_row(field: Field, fault: Fault) -> None:
    found = field.suffer(fault)
    print(found)
    assert found.requests > 0
    assert found.harmless, found
