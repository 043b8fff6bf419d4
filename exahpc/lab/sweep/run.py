"""A sweep: one shape after the other is brought up, loaded, and taken down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from exahpc.deployment import parse
from exahpc.deployment.spec import Deployment
from exahpc.errors import DeploymentError
from exahpc.lab.bench.run import measure
from exahpc.lab.bench.target import target_of
from exahpc.lab.bench.wish import Wish
from exahpc.lab.emulated.label import LABEL
from exahpc.lab.hire import Hire, deployment_for
from exahpc.lab.ladder.values import measured
from exahpc.lab.standing import standing
from exahpc.lab.sweep.shapes import Shape, all_of, shaped
from exahpc.lab.sweep.trials import Question, Sweep, Trial
from exahpc.launch import prepare
from exahpc.slurm.api import SlurmClient
from exahpc.wire.folder import write_atomic

FILE = "sweep.json"


def base(file: Path, nodes: int, pool: str | None = None) -> Deployment:
    """The deployment of FILE on so many nodes, with one pool. Raises DeploymentError."""
    name = parse.load(file.read_text(), str(file)).name
    found = deployment_for(Hire(like=file, nodes=nodes, pool=pool), f"{name}-sweep", keep=True)
    if len(found.pool) > 1:
        raise DeploymentError(f"{file} has {len(found.pool)} pools: choose one with --pool")
    return found


def ranks(deployment: Deployment) -> int:
    """Of a node, as the file has them."""
    (pool,) = deployment.pool
    return pool.ranks_per_replica * pool.replicas_per_task // pool.nodes_per_replica


def fitting(deployment: Deployment, told: Callable[[str], None]) -> list[Shape]:
    """All shapes of its ranks that the model can be cut into; why others cannot is told."""
    found = []
    for shape in all_of(ranks(deployment)):
        if reason := _reason(deployment, shape):
            told(f"{shape}: {reason}")
        else:
            found.append(shape)
    return found


def _reason(deployment: Deployment, shape: Shape) -> str:
    try:
        prepare.check_model(shaped(deployment, shape))
    except DeploymentError as error:
        return str(error)
    return ""


def begun(question: Question) -> Sweep:
    """Without any trial."""
    deployment = parse.load(question.toml, "the deployment")
    return Sweep(
        question,
        deployment=deployment.name,
        model=deployment.served_name,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        emulated="replicas compute nothing" if deployment.served_name.startswith(LABEL) else "",
    )


def save(sweep: Sweep, folder: Path) -> Path:
    path = folder / FILE
    write_atomic(path, msgspec.json.format(msgspec.json.encode(sweep)) + b"\n")
    return path


def trials(
    sweep: Sweep,
    deployment: Deployment,
    client: SlurmClient | None,
    told: Callable[[str], None],
    *,
    processes: int = 0,
    timeout: float | None = None,
) -> Iterator[Sweep]:
    """The sweep after each measurement that was missing: what is saved then need not be measured again.

    A shape that cannot serve this model is noted with the reason. Raises what `up` and the load client raise.
    """
    question = sweep.question
    for shape in question.shapes:
        if sweep.done(shape):
            continue
        if reason := _reason(deployment, shape):
            sweep = sweep.having(Trial(shape, reason=reason))
            yield sweep
            continue
        one = shaped(deployment, shape)
        told(f"{shape}: TP {shape.tensor} x PP {shape.pipeline}, {shape.replicas} replicas a node")
        with standing(one, client, told, timeout=timeout) as folder:
            target, key = target_of(folder, one)
            for load in question.loads[len(sweep.of(shape).steps) :]:
                wish = Wish(
                    target,
                    load,
                    question.prompt,
                    question.new,
                    ramp=question.ramp,
                    seconds=question.seconds,
                    drain=question.drain,
                    slo=question.slo,
                    seed=question.seed,
                )
                found = measure(wish, key, processes, told)
                trial = sweep.of(shape)
                step = measured(question.nodes, one.wanted_replicas, found)
                sweep = sweep.having(msgspec.structs.replace(trial, steps=(*trial.steps, step)))
                yield sweep
