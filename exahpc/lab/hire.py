"""The deployment that runs one batch: from a file like it, or planned from a model and a number of nodes."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import msgspec

from exahpc.deployment import parse, render
from exahpc.deployment.accelerators import ACCELERATORS
from exahpc.deployment.accelerators import Name as AcceleratorName
from exahpc.deployment.memory import Grid
from exahpc.deployment.policy import Budget, Scaling
from exahpc.deployment.spec import (
    Deployment,
    Dtype,
    Head,
    Launcher,
    LauncherKind,
    Model,
    Pool,
    Quantization,
    SlurmResources,
)
from exahpc.errors import DeploymentError
from exahpc.lab.plan import CONTEXT, Device, Wish, config_of, make
from exahpc.launch import prepare

_RUNTIME = 2**30
"""Bytes that libraries take of an unknown accelerator: an estimate."""


class Hire(msgspec.Struct, frozen=True):
    """What the user says about the nodes of a batch. What is None is planned, or as in the file `like`.

    nodes: of the job array; pool: of `like`; memory: bytes of one rank's accelerator, where `accelerator` is none
    of the known ones; per_node: accelerators of a node.
    """

    model: Path | None = None
    nodes: int | None = None
    like: Path | None = None
    pool: str | None = None
    launcher: LauncherKind | None = None
    accelerator: AcceleratorName | None = None
    memory: int | None = None
    per_node: int | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    context: int | None = None
    max_sequences: int | None = None
    dtype: Dtype | None = None
    quantization: Quantization | None = None
    partition: str | None = None
    account: str | None = None
    time: str | None = None

    @property
    def wanted(self) -> bool:
        """Whether a deployment is to be brought up at all."""
        return self.model is not None or self.like is not None


def deployment_for(hire: Hire, name: str, *, keep: bool) -> Deployment:
    """keep: it stays up after its batch, so it does not end by itself.

    Raises DeploymentError naming the option that is missing or cannot work.
    """
    found = _as_in(hire, hire.like) if hire.like is not None else _planned(hire)
    resources = {"partition": hire.partition, "account": hire.account, "time": hire.time}
    given = {key: value for key, value in resources.items() if value is not None}
    made = msgspec.structs.replace(
        found,
        name=name,
        slurm=msgspec.structs.replace(found.slurm, **given),
        pool=tuple(msgspec.structs.replace(pool, scaling=Scaling()) for pool in found.pool),
        budget=Budget(node_hours=found.budget.node_hours, release_idle=not keep),
    )
    parse.load(render.toml(made), str(hire.like or "the planned deployment"))
    return made


def _as_in(hire: Hire, like: Path) -> Deployment:
    for option, value in (("accelerator", hire.accelerator), ("memory", hire.memory), ("per-node", hire.per_node)):
        if value is not None:
            raise DeploymentError(f"--{option} = {value!r}: --like says what the nodes are: leave one of them out")
    found = prepare.read(like)
    model: dict[str, object] = {"context": hire.context, "dtype": hire.dtype, "quantization": hire.quantization}
    if hire.model is not None:
        model |= {"path": str(hire.model.expanduser().absolute()), "name": None}
    changes = {key: value for key, value in model.items() if value is not None or key == "name"}
    found = msgspec.structs.replace(found, model=msgspec.structs.replace(found.model, **changes))
    if hire.launcher is not None and hire.launcher != found.launcher.kind:
        raise DeploymentError(
            f"--launcher = {hire.launcher!r}: {like} has launcher.kind = {found.launcher.kind!r}"
        )
    names = [pool.name for pool in found.pool]
    if hire.pool is not None and hire.pool not in names:
        raise DeploymentError(f"--pool = {hire.pool!r}: {like} has {', '.join(names)}: choose one of them")
    if hire.pool is None and len(names) > 1:
        if hire.nodes is not None:
            raise DeploymentError(
                f"--nodes = {hire.nodes}: {like} has several pools ({', '.join(names)}): choose one with --pool"
            )
        return found
    return msgspec.structs.replace(found, pool=(_sized(found.pool_named(hire.pool or names[0]), hire),))


def _sized(pool: Pool, hire: Hire) -> Pool:
    changes = {
        "tensor_parallel": hire.tensor_parallel,
        "pipeline_parallel": hire.pipeline_parallel,
        "max_sequences": hire.max_sequences,
    }
    pool = msgspec.structs.replace(pool, **{key: value for key, value in changes.items() if value is not None})
    if hire.nodes is None:
        return pool
    tasks = hire.nodes // pool.nodes_per_replica
    if tasks == 0:
        need = pool.nodes_per_replica
        raise DeploymentError(f"--nodes = {hire.nodes}: one replica spans {need} nodes: give {need} or more")
    return msgspec.structs.replace(pool, replicas=tasks * pool.replicas_per_task)


def _planned(hire: Hire) -> Deployment:
    assert hire.model is not None
    if hire.pool is not None:
        raise DeploymentError(f"--pool = {hire.pool!r}: names a pool of --like: give that file, or leave it out")
    kind = hire.launcher or ("slurm" if shutil.which("sbatch") else "local")
    config, _ = config_of(str(hire.model))
    positions = config.get("max_position_embeddings")
    most = positions if isinstance(positions, int) and positions >= 16 else CONTEXT
    model = Model(
        path=str(hire.model),
        context=hire.context or min(CONTEXT, most),
        dtype=hire.dtype or "bfloat16",
        quantization=hire.quantization or "none",
    )
    pool = Pool(name="main", max_sequences=hire.max_sequences or Pool(name="main").max_sequences)
    device = _device(hire, kind)
    slurm = SlurmResources(gpus_per_node=str(device.per_node)) if kind == "slurm" else SlurmResources()
    here = kind == "local"
    bare = Deployment(
        name="batch",
        model=model,
        pool=(pool,),
        # --nodes is what is asked for: the head takes no further one
        head=Head(placement="local", bind="127.0.0.1", entries=1)
        if here
        else Head(placement="first-task", entries=1),
        slurm=slurm,
        launcher=Launcher(kind=kind, python=sys.executable),
    )
    grid = None
    if hire.tensor_parallel or hire.pipeline_parallel:
        grid = Grid(hire.tensor_parallel or 1, hire.pipeline_parallel or 1)
    wish = Wish(tokens=model.context, nodes=hire.nodes or 1, grid=grid)
    return prepare.settled(make(bare, pool, config, device, wish, fixed=False).deployment, Path.cwd())


def _device(hire: Hire, kind: LauncherKind) -> Device:
    known = ACCELERATORS[hire.accelerator] if hire.accelerator else None
    memory, per_node = hire.memory, hire.per_node
    if known is not None:
        devices = per_node or known.per_node
        return Device(known.title, memory or known.memory, known.runtime, devices)
    if kind == "local":
        ranks = per_node or 1
        memory = memory or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // ranks
        return Device("this machine's processors", memory, _RUNTIME, ranks)
    if memory is None or per_node is None:
        raise DeploymentError(
            f"what are the nodes? Give --accelerator ({', '.join(ACCELERATORS)}), or --memory and --per-node, or "
            f"--like with a deployment file"
        )
    return Device("an accelerator", memory, _RUNTIME, per_node)
