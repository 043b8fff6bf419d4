"""sbatch calls of a deployment. Pure: flags from the deployment's values, in a fixed order; scripts are static."""

from __future__ import annotations

from pathlib import Path

import msgspec

from exahpc.deployment.rules import merged
from exahpc.deployment.spec import Deployment, Pool, SlurmResources
from exahpc.slurm.api import Submission

WARN_SECONDS = 120
"""Slurm sends USR1 to the batch script so long before the time limit (give or take half a minute)."""

_FOR_REPLICAS = (
    "gres",
    "gpus_per_node",
    "constraint",
    "switches",
    "exclusive",
    "cpus_per_rank",
    "memory",
    "mpi",
)
"""Keys of `[slurm]` that speak of the replicas' nodes: the head's job has them only from `[head.slurm]`."""


def head_submission(deployment: Deployment, folder: Path, python: str, scripts: Path) -> Submission:
    """The head's own job: broker and entries on one node, one CPU each unless `[head.slurm]` says otherwise."""
    general = {
        key: value for key in SlurmResources.__struct_fields__ if key not in _FOR_REPLICAS
        if (value := getattr(deployment.slurm, key)) is not None
    }  # fmt: skip
    resources = merged(SlurmResources(**general), deployment.head.slurm)
    cpus = resources.cpus_per_rank or deployment.head.entries + 1
    return Submission(
        name=f"exahpc-{deployment.name}-head",
        script=str(scripts / "head.sbatch"),
        arguments=(
            *_common(deployment, folder, python, scripts, resources),
            *("--entries", str(deployment.head.entries)),
        ),
        flags=_flags(resources, folder, nodes=1, ranks_per_node=1, cpus=cpus, requeue=True, output="%x-%j.out"),
    )


def doctor_submission(
    deployment: Deployment, folder: Path, python: str, scripts: Path, *, nodes: int, time: str
) -> Submission:
    """`exahpc doctor --nodes N`: nodes as the first pool's replicas get them, for a few minutes.

    folder: holds deployment.toml, and gets the report.
    """
    pool = deployment.pool[0]
    resources = merged(deployment.slurm, pool.slurm)
    return Submission(
        name=f"exahpc-{deployment.name}-doctor",
        script=str(scripts / "doctor.sbatch"),
        arguments=_common(deployment, folder, python, scripts, resources),
        flags=_flags(
            msgspec.structs.replace(resources, time=time),
            folder,
            nodes=nodes,
            ranks_per_node=2,
            cpus=1,
            requeue=False,
            output="doctor-%j.out",
        ),
    )


def pool_name(deployment: Deployment, pool: Pool) -> str:
    """Name of all jobs of a pool."""
    return f"exahpc-{deployment.name}-{pool.name}"


def pool_submission(
    deployment: Deployment,
    pool: Pool,
    folder: Path,
    python: str,
    scripts: Path,
    *,
    array: str | None = None,
    dependency: str | None = None,
) -> Submission:
    """The job array of a pool.

    array: indices to submit, in Slurm's form, instead of those that `up` starts (a successor, a resubmission or a
    woken one of some tasks);
    dependency: as `sbatch --dependency` takes it.
    """
    resources = merged(deployment.slurm, pool.slurm)
    replicas = min(pool.replicas_per_task, pool.replicas)
    holds_head = deployment.head.placement == "first-task" and pool.name == deployment.pool[0].name
    return Submission(
        name=pool_name(deployment, pool),
        script=str(scripts / "replica.sbatch"),
        arguments=(
            *_common(deployment, folder, python, scripts, resources),
            *("--pool", pool.name),
            *(("--with-head", "--entries", str(deployment.head.entries)) if holds_head else ()),
            *(("--node-entries", str(on_nodes)) if (on_nodes := deployment.head.entries_on_nodes) else ()),
        ),
        flags=(
            *((f"--dependency={dependency}", "--kill-on-invalid-dep=yes") if dependency else ()),
            *_flags(
                resources,
                folder,
                nodes=pool.nodes_per_replica,
                ranks_per_node=pool.ranks_per_replica // pool.nodes_per_replica * replicas,
                cpus=resources.cpus_per_rank or pool.threads_per_rank,
                requeue=pool.requeue,
                output="%x-%A_%a.out",
            ),
        ),
        array=array if array is not None else f"0-{pool.first_tasks - 1}",
    )


def _common(
    deployment: Deployment, folder: Path, python: str, scripts: Path, resources: SlurmResources
) -> tuple[str, ...]:
    modules = (word for module in resources.modules or () for word in ("--module", module))
    packed = deployment.launcher.environment
    return (
        *("--folder", str(folder), "--python", python, "--scripts", str(scripts), *modules),
        *(("--environment", packed, "--environment-in", deployment.launcher.environment_in) if packed else ()),
    )


def _flags(
    resources: SlurmResources,
    folder: Path,
    *,
    nodes: int,
    ranks_per_node: int,
    cpus: int,
    requeue: bool,
    output: str,
) -> tuple[str, ...]:
    asked = (
        ("--partition", resources.partition),
        ("--account", resources.account),
        ("--qos", resources.qos),
        ("--time", resources.time),
        ("--reservation", resources.reservation),
        ("--constraint", resources.constraint),
        ("--switches", resources.switches),
        ("--gres", resources.gres),
        ("--gpus-per-node", resources.gpus_per_node),
        ("--mem", resources.memory),
    )
    return (
        *(f"{flag}={value}" for flag, value in asked if value is not None),
        *(("--exclusive",) if resources.exclusive else ()),
        f"--nodes={nodes}",
        f"--ntasks-per-node={ranks_per_node}",
        f"--cpus-per-task={cpus}",
        "--requeue" if requeue else "--no-requeue",
        f"--signal=B:USR1@{WARN_SECONDS}",
        "--open-mode=append",
        "--export=NIL",  # nothing of the submitter's shell gets into the job, not even by way of a login shell
        f"--chdir={folder}",
        f"--output={folder / 'logs' / 'slurm' / output}",
        *(resources.extra or ()),
    )
