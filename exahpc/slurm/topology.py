"""Which nodes share a switch, and so a fate, from `scontrol show topology`. Pure.

The forms, as Slurm's topology plugins print them; a file topology.conf (no Level, any case) reads the same:

    tree, dragonfly      SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1-4]    a leaf; Level=1 and up join leaves
    block (from 23.11)   BlockName=b1 BlockIndex=0 Nodes=n[1-18] [BlockSize=18]    AggregatedBlock=... joins blocks
    ring (newest)        RingName=r1 Nodes=n[1-8] RingSize=8

A torus has no parts that fail by themselves, and topology/flat (formerly none) says nothing at all.
"""

from __future__ import annotations

from exahpc.slurm.hostlist import expand

_NAMES = ("switchname", "blockname", "ringname")


def leaves(text: str) -> dict[str, str]:
    """Node -> its leaf switch, block or ring: the first one that names it. Empty where the site tells none."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        words = (word.partition("=") for word in line.partition("#")[0].split())
        values = {key.lower(): value for key, _, value in words}
        name = next((values[key] for key in _NAMES if key in values), "")
        if name and values.get("level", "0") == "0":
            for node in expand(values.get("nodes", "")):
                found.setdefault(node, name)
    return found
