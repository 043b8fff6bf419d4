"""Whether a deployment has room where it is to run: in accelerators, in job arrays, behind a switch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from exahpc.deployment.accelerators import ACCELERATORS, Accelerator, of_type
from exahpc.deployment.grid import kv_tokens
from exahpc.deployment.memory import Case, Grid
from exahpc.deployment.rules import merged
from exahpc.deployment.shape import ModelShape
from exahpc.deployment.sizing import shortage
from exahpc.deployment.spec import Deployment, Pool
from exahpc.errors import DeploymentError
from exahpc.launch.prepare import model_config
from exahpc.slurm import features

PATIENCE = "5:00"
"""Of a job that waits for one switch. Slurm's own bound (max_switch_wait) is the same unless a site changed it."""


def shortages(deployment: Deployment) -> list[str]:
    """Pools that do not fit the accelerators that the file names, each with the figures and the remedy.

    Accelerators that nobody named are not judged, nor is a margin asked for: `exahpc plan` does that.
    Raises DeploymentError when the model's sizes cannot be read.
    """
    named = [(pool, one) for pool in deployment.pool if (one := _accelerator(deployment, pool)) is not None]
    if not named:
        return []
    model = deployment.model
    shape = ModelShape.of(model_config(Path(model.path)))
    found = []
    for pool, one in named:
        case = Case(
            shape, model.dtype, model.quantization, model.context, pool.max_sequences, one.memory, one.runtime, 0.0
        )
        grid = Grid(pool.tensor_parallel, pool.pipeline_parallel)
        if why := shortage(case, grid, kv_tokens(pool, model.context)):
            found.append(f"pool {pool.name!r} on {one.title}: {why}")
    return found


def _accelerator(deployment: Deployment, pool: Pool) -> Accelerator | None:
    """By the pool's key, else by the type in gpus_per_node ("a100:4") or gres ("gpu:a100:4")."""
    if pool.accelerator is not None:
        return ACCELERATORS[pool.accelerator]
    resources = merged(deployment.slurm, pool.slurm)
    words = (resources.gpus_per_node or "").split(":")
    for item in (resources.gres or "").split(","):
        name, *rest = item.split("(")[0].split(":")
        if name == "gpu":
            words = rest
    return of_type(words[0].lower()) if words else None


def check_arrays(deployment: Deployment) -> None:
    """Raises DeploymentError when a pool has more tasks than this site's Slurm takes in one job array."""
    most = features.max_array_size() if deployment.launcher.kind == "slurm" else None
    for pool in deployment.pool:
        if most is not None and pool.tasks > most:
            raise DeploymentError(
                f"pool {pool.name!r}: replicas = {pool.replicas}, replicas_per_task = {pool.replicas_per_task} "
                f"make a job array of {pool.tasks} tasks, and this site takes {most} (MaxArraySize): split the "
                f"replicas into {-(-pool.tasks // most)} pools, or put more on a node"
            )


def advice_on_switches(deployment: Deployment, leaves: Mapping[str, str]) -> list[str]:
    """For pools whose replicas span nodes and may be torn apart between switches. leaves: node -> leaf switch."""
    sizes = Counter(leaves.values())
    if len(sizes) < 2:
        return []
    largest = max(sizes.values())
    found = []
    for pool in deployment.pool:
        nodes = pool.nodes_per_replica
        if nodes == 1 or merged(deployment.slurm, pool.slurm).switches is not None:
            continue
        where = f"Pool {pool.name}: a replica spans {nodes} nodes"
        if nodes <= largest:
            found.append(f'{where}; slurm.switches = "1@{PATIENCE}" waits up to {PATIENCE} for one switch')
        else:
            found.append(f"{where}, and no switch has more than {largest}: its stages follow the switches")
    return found
