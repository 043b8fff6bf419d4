"""Which accelerator is mine? Pure: from what the launcher made visible to the place among the visible.

Launchers differ: one gives every rank of a node the same list (`CUDA_VISIBLE_DEVICES=4,5,6,7`), another gives
each rank its own single device whatever its local rank. The runtime always counts inside the visible set.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from exahpc.errors import DeploymentError

VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


class Device(msgspec.Struct, frozen=True):
    """index: place inside the visible set; narrow: (variable, value) to set before the runtime starts."""

    index: int
    narrow: tuple[str, str] | None = None


def visible(value: str) -> tuple[str, ...]:
    """Entries of a visible-device string: indices, UUIDs ("GPU-8932f937-..."), MIG names, tiles ("0.1").

    An entry "-1" hides itself and all that follow, as CUDA reads it; "NoDevFiles" is Slurm's word for none.
    """
    entries: list[str] = []
    for entry in (part.strip() for part in value.split(",")):
        if entry in ("-1", "NoDevFiles", ""):
            break
        entries.append(entry)
    return tuple(entries)


def choose(environment: Mapping[str, str], local_rank: int, count: int, per_rank: int = 1) -> Device | None:
    """The device of the rank that is number `local_rank` of its replica on this node.

    count: devices that the runtime found (used when no variable restricts them); per_rank: devices a rank is
    given. None when there is no accelerator. Raises DeploymentError when the rank is left without one.
    """
    name, entries = None, tuple(str(i) for i in range(count))
    for variable in VARIABLES:
        if variable in environment:
            name, entries = variable, visible(environment[variable])
            break
    if not entries:
        return None
    if len(entries) == 1 or len(entries) == per_rank:
        return Device(0)  # the launcher gave this rank its own
    place = local_rank * per_rank
    if place >= len(entries):
        raise DeploymentError(
            f"local rank {local_rank} has no accelerator: {name or 'this node'} shows {len(entries)} "
            f"({','.join(entries)}) and each rank takes {per_rank}; ask for more (slurm.gres, gpus_per_node) "
            f"or use fewer ranks a node"
        )
    if name and entries[place].startswith("MIG"):  # CUDA shows one MIG instance per process, the first named
        return Device(0, (name, entries[place]))
    return Device(place)
