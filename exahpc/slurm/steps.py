"""The command line of one replica's job step. Pure: text out of values, in a fixed order.

Why each flag is there (each was seen to go wrong without it):

- `--ntasks` beside `--ntasks-per-node`: inside a job, `SLURM_NTASKS` is srun's default, and then srun *ignores*
  a smaller `--ntasks-per-node` with a warning and starts the ranks of all replicas in one step.
- `--exact`: a step takes only what it asks for, so the steps of a node's replicas run side by side.
- the devices in the job's own spelling: a job that asked for "gpu:12" has no "gpu:tile" for its steps.
- `--mem`: where memory is a resource, a step takes all of the job's unless told; the next one would wait for ever.
- `--export=ALL`: the job was submitted without the user's environment, which is also the steps' default.
- `--kill-on-bad-exit=1`: one dead rank ends its step within a second instead of hanging it in a collective.
- `--distribution=block`: consecutive ranks share a node, so a tensor-parallel group stays inside one.
"""

from __future__ import annotations

from collections.abc import Mapping

from exahpc.deployment.rules import merged
from exahpc.deployment.spec import Deployment, Pool, SlurmResources
from exahpc.errors import DeploymentError

DEFAULT_MPI = "pmix"


def step_argv(
    *,
    mpi: str | None = None,
    nodes: int,
    ranks_per_node: int,
    cpus_per_rank: int,
    gres_flags: tuple[str, ...] = (),
    memory_mb: int | None = None,
    overlap: bool = False,
    name: str | None = None,
) -> tuple[str, ...]:
    """`srun` and its flags for one step; the program and its arguments follow.

    memory_mb: the step's share of the job's memory on each node, or None where memory is not counted.
    overlap: share what other steps hold (helpers that take no device of their own) instead of `--exact`.
    """
    return (
        "srun",
        *((f"--job-name={name}",) if name else ()),
        f"--nodes={nodes}",
        f"--ntasks={nodes * ranks_per_node}",
        f"--ntasks-per-node={ranks_per_node}",
        f"--cpus-per-task={cpus_per_rank}",
        "--overlap" if overlap else "--exact",
        *gres_flags,
        *((f"--mem={memory_mb}M",) if memory_mb is not None else ()),
        f"--mpi={mpi or DEFAULT_MPI}",
        "--distribution=block",
        "--kill-on-bad-exit=1",
        "--export=ALL",
        "--input=none",
    )


def replica_step(deployment: Deployment, pool: Pool, environ: Mapping[str, str], name: str) -> tuple[str, ...]:
    """The step of one replica of `pool`, inside the job whose environment is given (for its memory)."""
    resources = merged(deployment.slurm, pool.slurm)
    ranks_per_node = pool.ranks_per_replica // pool.nodes_per_replica
    return step_argv(
        mpi=resources.mpi,
        nodes=pool.nodes_per_replica,
        ranks_per_node=ranks_per_node,
        cpus_per_rank=resources.cpus_per_rank or pool.threads_per_rank,
        gres_flags=device_flags(resources, ranks_per_node * pool.devices_per_rank),
        memory_mb=memory_share(environ, pool.replicas_per_task),
        name=name,
    )


def device_flags(resources: SlurmResources, devices: int) -> tuple[str, ...]:
    """`devices` accelerators on each node for one step, spelled as the job spelled them; () where it has none.

    Other generic resources of the job ("nvme:1") are left to the job: steps do not divide them.
    """
    if resources.gpus_per_node is not None:
        kind, _, count = resources.gpus_per_node.rpartition(":")
        _enough(devices, count, "slurm.gpus_per_node", resources.gpus_per_node)
        return (f"--gpus-per-node={kind}:{devices}" if kind else f"--gpus-per-node={devices}",)
    for item in (resources.gres or "").removeprefix("gres/").split(","):
        parts = item.split("(")[0].split(":")
        if parts[0] != "gpu":
            continue
        typed = parts[1:2] if len(parts) > 1 and not parts[1].isdigit() else []
        _enough(devices, parts[-1] if parts[-1].isdigit() else "1", "slurm.gres", item)
        return (f"--gres={':'.join(['gpu', *typed, str(devices)])}",)
    return ()


def _enough(devices: int, count: str, key: str, value: str) -> None:
    if count.isdigit() and devices > int(count):
        raise DeploymentError(
            f"{key} = {value!r}: one replica takes {devices} devices of a node "
            f"(ranks on the node x devices_per_rank): ask for more, or lower devices_per_rank"
        )


def memory_share(environ: Mapping[str, str], replicas: int) -> int | None:
    """Megabytes of each node for one of `replicas` steps; None where the job's memory is not counted per node.

    With memory per CPU, Slurm itself gives each step the share of its CPUs.
    """
    whole = environ.get("SLURM_MEM_PER_NODE", "")
    if replicas < 2 or not whole.isdigit() or whole == "0":
        return None
    return int(whole) // replicas
