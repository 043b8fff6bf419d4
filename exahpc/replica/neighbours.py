"""The order of a replica's ranks: nodes behind one switch follow each other, so that stages that talk do. Pure.

Slurm numbers ranks by its own list of nodes, which need not follow the switches. Each task of a step is told its
place (SLURM_TOPOLOGY_ADDR), the same way by topology/tree, dragonfly ones included ("spine.leaf1.node7"), and by
topology/block ("block1.node7"); without topology it is the node alone. So no rank has to ask Slurm, and the order
is made inside MPI: it needs no host file, which every srun and MPI would read in its own way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Place = tuple[str, ...]
"""From the top of the network to the node: ("spine", "leaf1", "node7")."""


def place(environ: Mapping[str, str], node: str) -> Place:
    """Of the process with this environment; `node`: its host, which also stands for an address that is missing."""
    address, pattern = environ.get("SLURM_TOPOLOGY_ADDR", ""), environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", "")
    parts = address.split(".", pattern.count("."))  # a node's name may have dots itself
    return (*parts[:-1], node)


def order(places: Sequence[Place]) -> list[int]:
    """The ranks in their new order; places: of each rank as MPI numbered it.

    Ranks of a node stay together, in their order; so do the nodes of a switch, and the switches of a higher one.
    Rank 0 stays the first (the agent waits for it on its node), and of the others what came first comes first.
    """
    first: dict[Place, int] = {}
    for rank, path in enumerate(places):
        for depth in range(1, len(path) + 1):
            first.setdefault(path[:depth], rank)
    return sorted(
        range(len(places)),
        key=lambda rank: ([first[places[rank][:depth]] for depth in range(1, len(places[rank]) + 1)], rank),
    )


def told(places: Sequence[Place]) -> str:
    """For the log: nodes in the order of the ranks, with the switches they are on."""
    return ", ".join("/".join(path) for path in dict.fromkeys(places))
