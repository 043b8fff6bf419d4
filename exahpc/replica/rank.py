"""From a bare MPI rank to a serving one: environment, devices, communicators, model, loop."""

from __future__ import annotations

import gc
import json
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from exahpc.deployment.architectures import check
from exahpc.deployment.grid import BLOCK, kv_tokens
from exahpc.deployment.parse import load
from exahpc.deployment.shape import ModelShape
from exahpc.deployment.spec import Pool
from exahpc.errors import DeploymentError
from exahpc.replica import neighbours, shm
from exahpc.replica.devices import Device, choose
from exahpc.replica.guard import fault
from exahpc.replica.mouth import Mouth
from exahpc.telemetry import logs
from exahpc.wire.folder import Folder

if TYPE_CHECKING:
    from mpi4py import MPI

    from exahpc.replica.worker import Worker

log = logging.getLogger(__name__)
CPU_BUDGET, DEVICE_BUDGET = 256, 2048
"""Tokens of one plan: enough to keep a processor (an accelerator) busy with prompts."""
CPU_CHUNK, DEVICE_CHUNK = 32, 1024
"""Prompt tokens of one plan while online sequences decode, see `batching`; by bench/chunked_prefill.py."""
CPU_FIXED, DEVICE_FIXED = 6, 256
"""Tokens that would take as long as reading the weights, which every plan does: on one core a step of SmolLM2-135M
takes 26 ms and 4.6 ms for each sequence; an accelerator computes for so many tokens while it reads."""
QUEUE = 8
"""Sequences that may wait for each that may run: the agent sends no more than run, so this is only a bound."""


def serve(folder: Path, pool_name: str, slot: int, incarnation: int, path: Path, version: str = "") -> None:
    """Be one rank of a replica until the agent says stop."""
    gc.disable()  # importing makes a million objects that stay: looking through them again and again finds nothing
    deployment = load(Folder(folder).version_toml(version))
    pool = deployment.pool_named(pool_name)
    config = json.loads((Path(deployment.model.path) / "config.json").read_text())
    check(
        config,
        tensor_parallel=pool.tensor_parallel,
        pipeline_parallel=pool.pipeline_parallel,
        context=deployment.model.context,
        pool=pool_name,
    )
    _environment(pool)
    from mpi4py import MPI

    _check_world(MPI.COMM_WORLD.size, pool, MPI.Get_library_version())
    world, places = _ordered(MPI.COMM_WORLD)
    logs.begin(f"%(asctime)s rank {world.rank} %(levelname)s %(name)s: %(message)s")
    if world.rank == 0:
        log.info("the ranks' nodes in their order: %s", neighbours.told(places))
    local = world.Split_type(MPI.COMM_TYPE_SHARED)
    _forget_shared_files(world)
    mouth = Mouth(path) if world.rank == 0 else None  # early: the agent connects while the model loads
    fault(world.rank, "import")
    device = _device(local.rank, pool.devices_per_rank)
    import torch

    from exahpc.replica import staging
    from exahpc.replica.batching import Limits, Scheduler, least_budget
    from exahpc.replica.engine import group
    from exahpc.replica.engine.stage import Stage
    from exahpc.replica.head import Head
    from exahpc.replica.worker import Grid, Worker
    from exahpc.wire.messages import ReplicaHello

    torch.set_num_threads(pool.threads_per_rank)
    torch.set_grad_enabled(False)
    grid = Grid(world, pool.tensor_parallel, pool.pipeline_parallel)
    by_device = device is not None and grid.stages > 1 and pool.link.via == "device"
    group.init(grid.tp, device.index if device else None, world=world if by_device else None)
    fault(world.rank, "load")
    context, tokens = deployment.model.context, kv_tokens(pool, deployment.model.context)
    weights = staging.prepare(world, local, deployment.model)
    stage = Stage(
        weights.folder,
        stage=grid.stage,
        stages=grid.stages,
        rank=grid.rank,
        ranks=grid.ranks,
        blocks=tokens // BLOCK,
        dtype=getattr(torch, deployment.model.dtype),
    )
    worker = Worker(grid, stage, pool.max_sequences, context, pool.link)
    gc.collect()
    gc.freeze()  # else a look through all of them holds up decoding by a quarter second every now and then
    gc.enable()
    world.Barrier()
    log.info(
        "stage %d of %d, rank %d of %d on %s of %s",
        *(grid.stage, grid.stages, grid.rank, grid.ranks, stage.device, os.uname().nodename),
    )
    if mouth is None:
        follow(worker)
    else:
        limits = Limits(
            sequences=pool.max_sequences,
            blocks=tokens // BLOCK,
            context=context,
            budget=max(DEVICE_BUDGET if device else CPU_BUDGET, least_budget(pool.max_sequences, grid.stages)),
            chunk=DEVICE_CHUNK if device else CPU_CHUNK,
            far=far(ModelShape.of(config), stage.slowness),
            fixed=DEVICE_FIXED if device else CPU_FIXED,
            lanes=grid.stages,
            vocabulary=stage.vocabulary_size,
            queue=QUEUE * pool.max_sequences,
        )
        hello = ReplicaHello(pool_name, slot, incarnation, pool.max_sequences, tokens, context, _step_id())
        Head(mouth, Scheduler(limits), worker, hello, pipelined=grid.stages > 1).run()
        mouth.close()
    worker.finish()
    world.Barrier()
    weights.close()


def far(shape: ModelShape, slowness: int) -> int:
    """Cached tokens to which a token's attention takes as long as its products (`Limits.far`).

    Operations of a layer: 2 for each parameter, 4 x heads x head size for each cached token, of which each takes
    `slowness` times as long.
    """
    return max(1, shape.layer_work // shape.look_work // slowness)


def follow(worker: Worker) -> None:
    """The loop of all ranks but the head."""
    while not (plan := worker.receive()).stop:
        worker.run(plan)


def _environment(pool: Pool) -> None:
    """Settings that libraries read when they are imported."""
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(pool.threads_per_rank)
    os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"  # nothing is fetched from a node
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def _check_world(size: int, pool: Pool, library: str) -> None:
    wanted = pool.ranks_per_replica
    if size != wanted:
        raise DeploymentError(
            f"the MPI world has {size} ranks, but tensor_parallel x pipeline_parallel = {pool.tensor_parallel} x "
            f"{pool.pipeline_parallel} = {wanted}. "
            + (
                f"This Python's mpi4py loaded {library.splitlines()[0]!r}, which is not the launcher's MPI: "
                f"load the same MPI module (slurm.modules), set slurm.mpi, or name the library in MPI4PY_LIBMPI"
                if size == 1
                else "Start exactly so many ranks"
            )
        )


def _ordered(world: MPI.Intracomm) -> tuple[MPI.Intracomm, list[neighbours.Place]]:
    """The world with the ranks of neighbouring nodes beside each other, and each rank's place. Collective."""
    places = world.allgather(neighbours.place(os.environ, os.uname().nodename))
    order = neighbours.order(places)
    made = world if order == list(range(world.size)) else world.Split(0, order.index(world.rank))
    return made, [places[rank] for rank in order]  # type: ignore[return-value]


def _device(local_rank: int, per_rank: int) -> Device | None:
    """This rank's accelerator, after telling DeepSpeed which kind it is."""
    count = 0
    if os.environ.get("DS_ACCELERATOR") != "cpu":
        import torch

        count = torch.cuda.device_count() or torch.xpu.device_count()
    device = choose(os.environ, local_rank, count, per_rank) if count else None
    if device is None:
        os.environ["DS_ACCELERATOR"] = "cpu"  # else DeepSpeed searches, and warns
    elif device.narrow:
        os.environ[device.narrow[0]] = device.narrow[1]
    return device


def _forget_shared_files(world: MPI.Comm) -> None:
    """Unlink this rank's files in /dev/shm once all ranks have mapped them: a killed rank leaves nothing behind.

    Collective. The mappings live on; MPI's own clean-up finds nothing to do.
    """
    world.alltoall([0] * world.size)  # everybody has talked to everybody
    world.Barrier()
    shm.unlink(shm.mapped(Path("/proc/self/maps").read_text()))


def _step_id() -> str:
    """Slurm's name of this step, or "" without Slurm."""
    job, step = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_STEP_ID")
    return f"{job}.{step}" if job and step else ""
