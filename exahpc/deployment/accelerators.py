"""What a rank runs on, for plans made where there is none of it. Pure data.

memory: where a digit stands behind the point, what PyTorch tells of such a device (`total_memory`, as its messages
about full memory show it); else the nominal size. runtime: an estimate for driver context, kernels and the
workspaces of libraries. Both can be given by hand (`exahpc plan --memory --runtime`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

GIB = 2**30
Name = Literal["v100-32", "a100-40", "a100-80", "h100-80", "h200-141", "mi250x-gcd", "mi300x", "pvc-tile"]


class Accelerator(msgspec.Struct, frozen=True):
    """memory, runtime: bytes; per_node: devices that one rank each uses, of a usual node."""

    title: str
    memory: int
    runtime: int
    per_node: int


def _of(title: str, memory: float, runtime: float, per_node: int) -> Accelerator:
    return Accelerator(title, int(memory * GIB), int(runtime * GIB), per_node)


ACCELERATORS: Mapping[Name, Accelerator] = {
    "v100-32": _of("NVIDIA V100 32 GB", 31.7, 0.75, 4),
    "a100-40": _of("NVIDIA A100 40 GB", 39.5, 0.75, 4),
    "a100-80": _of("NVIDIA A100 80 GB", 79.2, 0.75, 4),
    "h100-80": _of("NVIDIA H100 80 GB", 79.1, 0.75, 4),
    "h200-141": _of("NVIDIA H200 141 GB", 139.8, 0.75, 8),
    "mi250x-gcd": _of("AMD MI250X, one of two dies", 64, 1, 8),
    "mi300x": _of("AMD MI300X", 192, 1, 8),
    "pvc-tile": _of("Intel Data Center GPU Max 1550, one of two tiles", 64, 1, 12),
}


def of_type(kind: str) -> Accelerator | None:
    """The largest accelerator that Slurm's type may mean ("a100": the one of 80 GB), None for no known one."""
    found = [one for name, one in ACCELERATORS.items() if name.startswith(f"{kind}-") or name == kind]
    return max(found, key=lambda one: one.memory, default=None) if kind else None
