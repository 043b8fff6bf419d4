"""Stages that talk to each other run on nodes that are near each other, whatever list of nodes Slurm made."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from exahpc.replica.neighbours import Place, order, place, told

TREE = {"SLURM_TOPOLOGY_ADDR": "spine.leaf1.kt1", "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node"}


def test_the_place_is_read_as_slurm_tells_it() -> None:
    assert place(TREE, "kt1") == ("spine", "leaf1", "kt1")
    block = {"SLURM_TOPOLOGY_ADDR": "b7.kt1.site.org", "SLURM_TOPOLOGY_ADDR_PATTERN": "block.node"}
    assert place(block, "kt1") == ("b7", "kt1")
    assert place({"SLURM_TOPOLOGY_ADDR": "kt1", "SLURM_TOPOLOGY_ADDR_PATTERN": "node"}, "kt1") == ("kt1",)
    assert place({}, "laptop") == ("laptop",)


def test_nodes_that_follow_their_switches_keep_their_order() -> None:
    places = [("s", leaf, node) for leaf, node in (("a", "n1"), ("a", "n2"), ("b", "n3"), ("b", "n4"))]
    twice = [path for path in places for _ in range(2)]
    assert order(twice) == list(range(8))


def test_nodes_of_a_leaf_are_brought_together_behind_the_first_one() -> None:
    """n1 n2 n3 n4 on leaves b a b a: without it every hand-over would cross the spine."""
    places = [("s", leaf, node) for leaf, node in (("b", "n1"), ("a", "n2"), ("b", "n3"), ("a", "n4"))]
    assert order(places) == [0, 2, 1, 3]
    assert told([places[rank] for rank in order(places)]) == "s/b/n1, s/b/n3, s/a/n2, s/a/n4"


def test_leaves_of_a_higher_switch_are_brought_together_too() -> None:
    places = [("west", "a", "1"), ("east", "b", "2"), ("west", "c", "3"), ("east", "d", "4"), ("west", "a", "5")]
    assert order(places) == [0, 4, 2, 1, 3]


def test_ranks_that_an_mpi_deals_out_in_turns_are_gathered_by_node() -> None:
    """Else a tensor-parallel group would span nodes."""
    assert order([("n1",), ("n2",), ("n1",), ("n2",)]) == [0, 2, 1, 3]


NETWORKS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 3)).map(
        lambda path: (f"s{path[0]}", f"s{path[0]}.{path[1]}", f"n{path}")
    ),
    min_size=1,
    max_size=24,
)


@given(NETWORKS)
def test_every_switch_is_one_run_and_rank_0_stays(places: list[Place]) -> None:
    found = order(places)
    assert sorted(found) == list(range(len(places)))
    assert found[0] == 0
    for depth in (1, 2, 3):
        runs = [places[rank][:depth] for rank in found]
        changes = 1 + sum(here != before for before, here in pairwise(runs))
        assert changes == len(set(runs))
    of_node: dict[Place, list[int]] = {}
    for rank in found:
        of_node.setdefault(places[rank], []).append(rank)
    assert all(ranks == sorted(ranks) for ranks in of_node.values())
    ordered = [places[rank] for rank in found]
    assert order(ordered) == list(range(len(ordered)))
