"""Shapes of a node: how its ranks are shared out among replicas. Pure."""

from __future__ import annotations

import re

import msgspec

from exahpc.deployment import parse, render
from exahpc.deployment.spec import Deployment
from exahpc.errors import DeploymentError


class Shape(msgspec.Struct, frozen=True, order=True):
    """tensor, pipeline: parallel ranks of a replica; replicas: of each node."""

    tensor: int
    pipeline: int
    replicas: int

    def __str__(self) -> str:
        return f"{self.tensor}x{self.pipeline}x{self.replicas}"


def parsed(text: str) -> list[Shape]:
    """From "1x1x8,2x1x4". Raises DeploymentError."""
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)x(\d+)x(\d+)", part.strip())
        shape = Shape(*map(int, match.groups())) if match else None
        if shape is None or min(shape.tensor, shape.pipeline, shape.replicas) < 1 or shape in found:
            raise DeploymentError(f"shape {part!r}: write TPxPPxREPLICAS of a node, each once: 1x1x8,2x1x4,4x1x2")
        found.append(shape)
    return found


def all_of(ranks: int) -> list[Shape]:
    """All that give each of `ranks` ranks of a node something to do; most replicas first."""
    return sorted(
        (
            Shape(tensor, pipeline, ranks // (tensor * pipeline))
            for tensor in range(1, ranks + 1)
            for pipeline in range(1, ranks + 1)
            if ranks % (tensor * pipeline) == 0
        ),
        key=lambda shape: (-shape.replicas, shape.pipeline),
    )


def shaped(deployment: Deployment, shape: Shape) -> Deployment:
    """The deployment, of one pool, with the same nodes in this shape, and a name of its own.

    Raises DeploymentError when the file's rules do not allow it.
    """
    (pool,) = deployment.pool
    nodes = pool.tasks * pool.nodes_per_replica
    changed = msgspec.structs.replace(
        pool,
        tensor_parallel=shape.tensor,
        pipeline_parallel=shape.pipeline,
        replicas_per_task=shape.replicas,
        nodes_per_replica=1,
        replicas=nodes * shape.replicas,
    )
    found = msgspec.structs.replace(deployment, name=f"{deployment.name}-{shape}", pool=(changed,))
    parse.load(render.toml(found), f"shape {shape}")
    return found
