"""`python -m exahpc.agent`: the agent of one array task. `slurm/replica.sbatch` starts it and keeps it alive."""

from __future__ import annotations

import gc
import logging
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import click
import uvloop

from exahpc.agent.core import AgentCore
from exahpc.agent.leases import LeaseWorker
from exahpc.agent.leaving import EXIT_REQUEUE
from exahpc.agent.main import Agent
from exahpc.agent.relay import Relay
from exahpc.agent.starter import Starter
from exahpc.agent.tokenizer import Tokenizer
from exahpc.deployment.parse import load
from exahpc.deployment.spec import Deployment, Pool
from exahpc.errors import DeploymentError, ExahpcError
from exahpc.slurm import choose, has_requeue_exit, here
from exahpc.telemetry import logs
from exahpc.wire.folder import Folder
from exahpc.wire.link import require_descriptors

log = logging.getLogger(__name__)

MOST_REQUEUES = 5  # of one job, before it ends and the broker submits a new one, or gives up
_DESCRIPTORS = 4096  # an entry is a connection, and each replica takes some


@click.command()
@click.option("--folder", type=click.Path(exists=True, path_type=Path), required=True, help="Deployment's folder.")
@click.option("--pool", required=True)
@click.option("--task", type=int, required=True, help="Index of the array task.")
def main(folder: Path, pool: str, task: int) -> None:
    """Keep the replicas of one array task serving.

    Ends with 0, with 75 to hand the task back to Slurm, or with 76 to be started again with another version.
    """
    logs.begin("%(asctime)s %(levelname).1s %(name)s: %(message)s")
    try:
        code = run(Folder(folder), pool, task)
    except ExahpcError as error:
        log.error("%s", error)
        sys.exit(error.exit_code)
    sys.exit(code)


def run(
    folder: Folder,
    pool_name: str,
    task: int,
    starter: Callable[[Folder, Deployment, Pool, int, str], Starter] = Starter,
) -> int:
    """Be the agent of a task. Returns its exit code. Raises ExahpcError when it cannot begin."""
    require_descriptors(_DESCRIPTORS)
    version = folder.assigned(pool_name, task)
    if version:
        log.info("serving version %s", version)
    deployment = load(folder.version_toml(version), f"{version}.toml" if version else "deployment.toml")
    pool = _pool(deployment, pool_name, task)
    head = folder.head()
    incarnation = folder.claim_incarnation(pool.name, f"t{task}")
    core = AgentCore(
        pool.slots_of_task(task),
        deployment.recovery,
        hand_back_code=_hand_back_code(deployment, pool),
        epoch=head.epoch if head is not None else 0,
        version=version,
    )
    relay = Relay(deployment, _tokenizer(deployment), version)

    async def serve() -> int:
        return await Agent(
            folder,
            deployment,
            pool,
            task,
            incarnation=incarnation,
            core=core,
            relay=relay,
            worker=LeaseWorker(f"{pool.name}-{task}", node=socket.gethostname(), version=version),
            starter=starter(folder, deployment, pool, task, version),
        ).run()

    gc.freeze()  # what is imported stays: full collections need not look at it while streams wait
    gc.set_threshold(10_000)  # with 700, the ids of long prompts are looked through again and again
    code = uvloop.run(serve())
    if code == EXIT_REQUEUE:
        _requeue()
    return code


def _pool(deployment: Deployment, name: str, task: int) -> Pool:
    for pool in deployment.pool:
        if pool.name == name:
            if 0 <= task < pool.tasks:
                return pool
            raise DeploymentError(f"--task {task}: pool {name!r} has tasks 0 to {pool.tasks - 1}")
    known = ", ".join(pool.name for pool in deployment.pool)
    raise DeploymentError(f"--pool {name!r} is none of this deployment's pools ({known})")


def _tokenizer(deployment: Deployment) -> Tokenizer:
    return Tokenizer.load(Path(deployment.model.path), fold_system=deployment.model.fold_system)


def _hand_back_code(deployment: Deployment, pool: Pool) -> int:
    if deployment.launcher.kind == "local":
        return 1  # nobody but the supervisor can start this task again
    if here.restarts() >= MOST_REQUEUES:
        return 0  # a task that fails wherever it runs must not circle for ever: the broker's budget decides
    return EXIT_REQUEUE if pool.requeue else 0


def _requeue() -> None:
    """Ask for it where exit code 75 does not do it. Best effort: the broker sees a task that stays away."""
    task = here.task_id()
    if task is None or has_requeue_exit(EXIT_REQUEUE):
        return
    try:
        client, _ = choose()
        client.requeue(task)
    except ExahpcError as error:
        log.error("cannot requeue %s: %s", task, error)


if __name__ == "__main__":
    main()
