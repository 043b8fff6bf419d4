"""Leaf switches, blocks and rings, from every form in which Slurm's plugins print them."""

from __future__ import annotations

import pytest

from exahpc.slurm.topology import leaves

TREE = """
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-2]
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[3,5]
SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-3,5] Switches=leaf[1-2]
"""
DRAGONFLY = """
SwitchName=group0 Level=0 LinkSpeed=1 Nodes=n[1-2]
SwitchName=group1 Level=0 LinkSpeed=1 Nodes=n[3,5]
SwitchName=all Level=1 LinkSpeed=1 Nodes=n[1-3,5] Switches=group[0-1]
"""
BLOCK_23_11 = "BlockName=b0 BlockIndex=0 Nodes=n[1-2]\nBlockName=b1 BlockIndex=1 Nodes=n[3,5]\n"
BLOCK_24_05 = """
BlockName=b0 BlockIndex=0 Nodes=n[1-2] BlockSize=2
BlockName=b1 BlockIndex=1 Nodes=n[3,5] BlockSize=2
AggregatedBlock=b[0-1] BlockIndex=2 Nodes=n[1-3,5] BlockSize=4
"""
RING = "RingName=r0 Nodes=n[1-2] RingSize=2\nRingName=r1 Nodes=n[3,5] RingSize=2\n"
FILE = """
# topology.conf
SwitchName=leaf1 Nodes=n[1-2]   # a rack
switchname=leaf2 nodes=n[3,5]
SwitchName=spine Switches=leaf[1-2]
"""


@pytest.mark.parametrize(
    ("text", "first", "second"),
    [
        (TREE, "leaf1", "leaf2"),
        (DRAGONFLY, "group0", "group1"),
        (BLOCK_23_11, "b0", "b1"),
        (BLOCK_24_05, "b0", "b1"),
        (RING, "r0", "r1"),
        (FILE, "leaf1", "leaf2"),
    ],
    ids=["tree", "dragonfly", "block-23.11", "block-24.05", "ring", "topology.conf"],
)
def test_each_node_is_in_one_domain(text: str, first: str, second: str) -> None:
    assert leaves(text) == {"n1": first, "n2": first, "n3": second, "n5": second}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No topology information available\n",
        "TorusName=t Dims=2x2x2 Nodes=n[1-8]\n  TorusName=t PlacementDims=1x2x2(4) Anchors=4\n",
        "SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=leaf[1-2]\n",
        "SwitchName=empty Level=0 LinkSpeed=1\nBlockName=spare BlockIndex=3 BlockSize=4\n",
    ],
)
def test_what_names_no_part_of_the_cluster_makes_no_domain(text: str) -> None:
    assert leaves(text) == {}


def test_a_node_on_two_leaves_counts_to_the_first() -> None:
    rails = "SwitchName=rail0 Level=0 Nodes=n[1-2]\nSwitchName=rail1 Level=0 Nodes=n[1-3]\n"
    assert leaves(rails) == {"n1": "rail0", "n2": "rail0", "n3": "rail1"}
