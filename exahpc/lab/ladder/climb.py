"""The steps of a ladder: on a cluster or this machine with the code of `up` and `down`, or in simulation."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from exahpc.deployment import parse
from exahpc.deployment.spec import Deployment
from exahpc.errors import DeploymentError
from exahpc.lab.bench.run import measure
from exahpc.lab.bench.target import target_of
from exahpc.lab.bench.wish import Slo, Wish
from exahpc.lab.emulated.calibrate import calibrated
from exahpc.lab.emulated.label import LABEL
from exahpc.lab.emulated.model import Latency
from exahpc.lab.hire import Hire, deployment_for
from exahpc.lab.ladder.values import Ladder, Question, Step, measured, simulated
from exahpc.lab.simulate.report import EMULATED
from exahpc.lab.simulate.run import simulate
from exahpc.lab.simulate.scenario import Arrivals, Request, Scenario
from exahpc.lab.simulate.scenario import Slo as Limits
from exahpc.lab.standing import standing
from exahpc.launch import prepare
from exahpc.slurm.api import SlurmClient

TYPICAL = 5
"""Lengths that stand for a distribution in a simulation."""
_NO_LIMIT = 1e9


def shaped(file: Path, nodes: int, pool: str | None = None) -> Deployment:
    """The deployment of FILE on so many nodes, with a name of its own. Raises DeploymentError."""
    name = parse.load(file.read_text(), str(file)).name
    return deployment_for(Hire(like=file, nodes=nodes, pool=pool), f"{name}-ladder-{nodes}", keep=True)


def check(deployments: Sequence[Deployment]) -> None:
    """Everything that can be refused is refused before the first node is asked for. Raises DeploymentError."""
    first = deployments[0]
    prepare.check_stage(first)
    prepare.check_model(first)
    prepare.check_programs(first)


def begun(question: Question) -> Ladder:
    """Without any step."""
    deployment = parse.load(question.toml, "the deployment")
    if question.simulated:
        emulated = EMULATED
    else:
        emulated = "replicas compute nothing" if deployment.served_name.startswith(LABEL) else ""
    return Ladder(
        question,
        deployment=deployment.name,
        model=deployment.served_name,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        emulated=emulated,
    )


def step(
    question: Question,
    deployment: Deployment,
    nodes: int,
    client: SlurmClient | None,
    told: Callable[[str], None],
    *,
    processes: int = 0,
    timeout: float | None = None,
) -> Step:
    """Bring it up, load it, take it down. Raises what these raise; it is down then, too."""
    with standing(deployment, client, told, timeout=timeout) as folder:
        target, key = target_of(folder, deployment)
        wish = Wish(
            target,
            question.load.times(nodes),
            question.prompt,
            question.new,
            ramp=question.ramp,
            seconds=question.seconds,
            drain=question.drain,
            slo=question.slo,
            seed=question.seed,
        )
        began = time.monotonic()
        found = measure(wish, key, processes, told)
        told(f"{nodes} nodes: measured in {time.monotonic() - began:.0f} s")
    return measured(nodes, deployment.wanted_replicas, found)


def simulated_step(question: Question, deployment: Deployment, nodes: int) -> Step:
    """The same with emulated replicas by a virtual clock. Raises DeploymentError for a load it does not know."""
    load = question.load
    if not load.open:
        raise DeploymentError("--simulate knows no clients that wait for their answers: give --rate")
    mix = tuple(
        Request(prompt=prompt, new=new)
        for prompt in question.prompt.typical(TYPICAL)
        for new in question.new.typical(TYPICAL)
    )
    scenario = Scenario(
        name="ladder",
        seconds=question.seconds,
        warm=question.ramp,
        seed=question.seed,
        arrivals=Arrivals(kind="even" if load.arrivals == "fixed" else "poisson", rate=load.rate * nodes, mix=mix),
        replica=calibrated(Path(question.latency)) if question.latency else Latency(),
        slo=_limits(question.slo, question.drain),
    )
    return simulated(nodes, simulate(deployment, scenario), bool(question.slo))


def _limits(slo: Slo, drain: float) -> Limits:
    """A simulation goes on until the deadline of its last request is over: the drain."""
    return Limits(
        first_token=slo.ttft or _NO_LIMIT,
        between=slo.tbt or _NO_LIMIT,
        deadline=slo.e2e or max(1.0, drain),
    )
