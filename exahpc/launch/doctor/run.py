"""Makes all checks that this machine, or this allocation, can make."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from exahpc.agent import launch, starter
from exahpc.deployment import render
from exahpc.deployment.rules import merged
from exahpc.deployment.spec import Deployment
from exahpc.errors import DeploymentError, ExahpcError, SlurmError
from exahpc.launch import prepare
from exahpc.launch.doctor import judge_nodes, judge_ranks, judge_slurm, node, slurm_facts
from exahpc.launch.doctor.facts import Node
from exahpc.launch.doctor.finding import Finding, ordered
from exahpc.replica.probe import World
from exahpc.slurm.here import interpreter
from exahpc.slurm.hostlist import expand
from exahpc.slurm.steps import device_flags, step_argv

T = TypeVar("T")
STEP_SECONDS = 600
"""Longest wait for a step: an import of torch from a slow file system takes minutes."""


def here(deployment: Deployment | None, home: Path) -> list[Finding]:
    """On this machine alone: a login node, or a laptop. home: where deployments lie; made when it is missing."""
    with _workshop(home, deployment) as work:
        nodes = [node.look(work, deployment)]
    found = [*common(deployment, home), *judge_nodes.judge(nodes, deployment), *_local_ranks(deployment)]
    return ordered(found, _why_not(deployment))


def inside(deployment: Deployment, home: Path) -> list[Finding]:
    """On all nodes of the allocation that we are in. Raises DeploymentError outside of one."""
    hosts = expand(os.environ.get("SLURM_JOB_NODELIST", ""))
    if not hosts:
        raise DeploymentError("--inside: this is no allocation; use salloc first, or --nodes N to ask for nodes")
    with _workshop(home, deployment) as work:
        asked = (
            interpreter(),
            "-m",
            "exahpc.launch.doctor.node",
            "--directory",
            str(work),
            "--peers",
            str(len(hosts)),
        )
        step = step_argv(nodes=len(hosts), ranks_per_node=1, cpus_per_rank=1, mpi="none", overlap=True)
        told, words = _lines((*step, *asked, "--file", str(work / "deployment.toml")), Node)
    findings = list(common(deployment, home))
    if len(told) == len(hosts):
        findings += judge_nodes.judge(told, deployment)
    else:
        findings.append(
            Finding("python", "fail", f"{len(told)} of {len(hosts)} nodes could be looked at: {words}", _UNSEEN)
        )
    one, several = _ranks(deployment, 2, 1), _ranks(deployment, len(hosts), len(hosts)) if len(hosts) > 1 else None
    findings += judge_ranks.judge(one[0], 2, 1, one[1], deployment)
    if several is not None:
        findings += judge_ranks.judge(several[0], len(hosts), len(hosts), several[1], deployment)
    findings.append(judge_ranks.fabric(several[0][0] if several and several[0] else None, told))
    return ordered(findings, "needs two nodes or more" if len(hosts) == 1 else _why_not(deployment))


def _why_not(deployment: Deployment | None) -> str:
    if deployment is not None and deployment.launcher.kind == "local":
        return 'launcher.kind = "local"'
    return (
        "there is no Slurm here"
        if shutil.which("scontrol") is None
        else "only nodes can tell: --nodes or --inside"
    )


_UNSEEN = "launcher.python and the deployments' folder must be visible on the nodes"


def common(deployment: Deployment | None, home: Path) -> Iterator[Finding]:
    """What is the same from everywhere: the model and Slurm."""
    yield _model(deployment)
    if deployment is not None and deployment.launcher.kind == "local":
        return
    if shutil.which("scontrol") is None:
        return
    try:
        facts = slurm_facts.gather(deployment, home / (deployment.name if deployment else "doctor"))
    except SlurmError as error:
        yield Finding(
            "slurm-version", "fail", str(error), "run this on a login node, or load the site's Slurm module"
        )
        return
    yield from judge_slurm.judge(facts, deployment)


def _model(deployment: Deployment | None) -> Finding:
    if deployment is None:
        return Finding("model", "skipped", "no deployment was named")
    try:
        ledgers = prepare.check_model(deployment)
    except DeploymentError as error:
        return Finding("model", "fail", str(error), "see docs/howto/models.md and docs/howto/weights.md")
    grids = ", ".join(f"{pool.tensor_parallel} x {pool.pipeline_parallel}" for pool in deployment.pool)
    return Finding(
        "model", "ok", f"weights, tokenizer and config are whole; {len(ledgers)} pool(s), TP x PP {grids}"
    )


@contextlib.contextmanager
def _workshop(home: Path, deployment: Deployment | None) -> Iterator[Path]:
    """A folder on the file system of the deployments, gone afterwards."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".doctor-", dir=home))
    try:
        if deployment is not None:
            (work / "deployment.toml").write_text(render.toml(deployment))
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


# --- steps -------------------------------------------------------------------------------------------------------

_PROBE = (interpreter(), "-P", "-m", "exahpc.replica.probe")


def _local_ranks(deployment: Deployment | None) -> list[Finding]:
    """Two ranks on this machine, where it is to serve itself."""
    if deployment is None or deployment.launcher.kind != "local":
        return []
    try:
        flavour = starter.flavour_of(deployment.launcher.mpirun)
    except ExahpcError as error:
        return [Finding("mpi", "fail", str(error), "install Open MPI or MPICH, or set launcher.mpirun")]
    argv = launch.mpirun_argv(deployment.launcher, flavour, 2, _PROBE, root=os.geteuid() == 0)
    worlds, words = _lines(argv, World)
    return judge_ranks.judge(worlds, 2, 1, words, deployment)


def _ranks(deployment: Deployment, ranks: int, hosts: int) -> tuple[list[World], str]:
    """A step of `ranks` over `hosts` nodes with the devices of the first pool's replicas."""
    pool = deployment.pool[0]
    resources = merged(deployment.slurm, pool.slurm)
    devices = pool.ranks_per_replica // pool.nodes_per_replica * pool.devices_per_rank
    step = step_argv(
        mpi=resources.mpi,
        nodes=hosts,
        ranks_per_node=ranks // hosts,
        cpus_per_rank=1,
        gres_flags=device_flags(resources, devices),
    )
    return _lines((*step, *_PROBE), World)


def _lines(argv: Sequence[str], kind: type[T]) -> tuple[list[T], str]:
    """(what the step told, the end of its error output)."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=STEP_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], str(error)
    told = []
    for line in done.stdout.splitlines():
        with contextlib.suppress(msgspec.DecodeError):  # libraries print what they like
            told.append(msgspec.json.decode(line, type=kind))
    return told, " ".join(done.stderr.split())[-400:] or f"exit code {done.returncode} without a word"
