"""Laws of staging over several nodes: the checkpoint is read once, and every node gets the same copy."""

from __future__ import annotations

from typing import Any

import pytest
from mpi_helpers import result

from tests.families import tiny

Found = list[dict[str, Any]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    root = tmp_path_factory.mktemp("staging")
    (root / "disks").mkdir()
    tiny("llama", root / "model")
    found: Found = result(3, "staging_program.py", root / "model", root / "disks")
    return found


def opened(found: Found, case: str) -> list[int]:
    """Largest first: which rank reads is open."""
    return sorted((one[case]["opened"] for one in found if case in one), reverse=True)


@pytest.mark.parametrize("form", ["none", "int8"])
def test_one_of_the_nodes_that_lack_the_copy_reads_and_the_others_get_it_by_mpi(found: Found, form: str) -> None:
    assert len(opened(found, f"{form}, last node")) == 1
    first, *others = opened(found, f"{form}, all nodes")
    assert first > 0
    assert others == [0, 0]
    assert opened(found, f"{form}, once more") == [0, 0, 0]


def test_every_node_has_the_same_bytes(found: Found) -> None:
    for case in {case for one in found for case in one}:
        sums = [one[case]["sums"] for one in found if case in one]
        assert all(other == sums[0] for other in sums)
    assert found[0]["none, all nodes"]["sums"] == found[0]["three ranks"]["sums"]
    assert found[0]["none, all nodes"]["sums"] != found[0]["int8, all nodes"]["sums"]


def test_a_node_whose_copy_another_process_is_making_is_waited_for(found: Found) -> None:
    assert opened(found, "a busy node")[1:] == [0, 0]


def test_replicas_of_a_node_cost_one_read(found: Found) -> None:
    heads, copy = 1, 1  # each replica looks at the head of the file; one of them reads the file
    assert opened(found, "three replicas") == [heads + copy, heads, heads]
    assert opened(found, "three ranks") == [heads, 0, 0]
