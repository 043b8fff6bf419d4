"""What the site's Slurm means for a deployment. Pure."""

from __future__ import annotations

import re

from exahpc.deployment.rules import merged
from exahpc.deployment.spec import Deployment
from exahpc.launch.doctor.facts import SlurmFacts
from exahpc.launch.doctor.finding import Finding
from exahpc.slurm.features import holds_code
from exahpc.slurm.steps import DEFAULT_MPI

OLDEST = (20, 11)
"""`srun --exact` and `--overlap` came with it."""
HANDED_BACK = 75
"""Exit code by which a task asks Slurm to run it again."""
LAST_CALL = 30
"""Seconds that the batch scripts give their children (`slurm/supervise.sh`)."""


def judge(facts: SlurmFacts, deployment: Deployment | None) -> list[Finding]:
    """All that needs no node. deployment: None when the site alone is looked at."""
    return [
        _version(facts),
        _requeue(facts, deployment),
        _arrays(facts, deployment),
        _end(facts),
        _processes(facts),
        _mpi(facts, deployment),
        _topology(facts),
        _preemption(facts),
        _submit(facts),
    ]


def _version(facts: SlurmFacts) -> Finding:
    found = re.match(r"(\d+)\.(\d+)", facts.version)
    if found is None:
        return Finding("slurm-version", "fail", "sbatch tells no version", "load the site's Slurm module")
    if (int(found[1]), int(found[2])) < OLDEST:
        old = "{}.{:02}".format(*OLDEST)
        return Finding("slurm-version", "fail", f"{facts.version} is older than {old}", "ask for a newer Slurm")
    return Finding("slurm-version", "ok", facts.version)


def _requeue(facts: SlurmFacts, deployment: Deployment | None) -> Finding:
    codes, default = facts.config.get("RequeueExit", ""), facts.config.get("JobRequeue", "")
    wanted = deployment is None or any(pool.requeue for pool in deployment.pool)
    if not wanted:
        return Finding("slurm-requeue", "ok", "requeue = false: lost tasks are submitted anew")
    if holds_code(codes, HANDED_BACK):
        return Finding("slurm-requeue", "ok", f"RequeueExit = {codes}, JobRequeue = {default}")
    return Finding(
        "slurm-requeue",
        "warn",
        f"RequeueExit = {codes or 'none'} does not name {HANDED_BACK}: the broker requeues tasks itself",
        f"nothing, or ask for RequeueExit={HANDED_BACK}; where no job may be requeued, set requeue = false",
    )


def _arrays(facts: SlurmFacts, deployment: Deployment | None) -> Finding:
    most = _number(facts.config.get("MaxArraySize", ""))
    tasks = max((pool.tasks for pool in deployment.pool), default=0) if deployment else 0
    if most is None:
        return Finding("slurm-arrays", "skipped", "scontrol tells no MaxArraySize")
    if tasks > most:
        return Finding(
            "slurm-arrays",
            "fail",
            f"MaxArraySize = {most}, but a pool has {tasks} tasks",
            "divide the pool into several, or raise replicas_per_task",
        )
    return Finding("slurm-arrays", "ok", f"MaxArraySize = {most}" + (f", {tasks} tasks wanted" if tasks else ""))


def _end(facts: SlurmFacts) -> Finding:
    seconds = _number(facts.config.get("KillWait", ""))
    if seconds is None:
        return Finding("slurm-end", "skipped", "scontrol tells no KillWait")
    if seconds < LAST_CALL:
        return Finding(
            "slurm-end",
            "warn",
            f"KillWait = {seconds} s between TERM and KILL; an orderly end may take {LAST_CALL} s",
            f"ask for KillWait={LAST_CALL}; the walltime warning comes two minutes before in any case",
        )
    return Finding("slurm-end", "ok", f"KillWait = {seconds} s")


def _processes(facts: SlurmFacts) -> Finding:
    kind = facts.config.get("ProctrackType", "")
    if kind.endswith("cgroup"):
        return Finding("slurm-processes", "ok", f"ProctrackType = {kind}")
    return Finding(
        "slurm-processes",
        "warn",
        f"ProctrackType = {kind or 'unknown'}: Slurm may miss processes of a step that it ends",
        "ask for proctrack/cgroup; the batch scripts look for leftovers themselves",
    )


def _mpi(facts: SlurmFacts, deployment: Deployment | None) -> Finding:
    wanted = {DEFAULT_MPI}
    if deployment is not None:
        wanted = {merged(deployment.slurm, pool.slurm).mpi or DEFAULT_MPI for pool in deployment.pool}
    if not facts.mpi:
        return Finding("slurm-mpi", "skipped", "`srun --mpi=list` named nothing")
    missing = sorted(wanted - set(facts.mpi))
    named = ", ".join(facts.mpi)
    if missing:
        return Finding(
            "slurm-mpi", "fail", f"srun has {named}, not {', '.join(missing)}", "set slurm.mpi to one of them"
        )
    return Finding("slurm-mpi", "ok", f"{', '.join(sorted(wanted))} of {named}")


def _topology(facts: SlurmFacts) -> Finding:
    plugin = facts.config.get("TopologyPlugin", "") or "none"
    if facts.switches:
        return Finding("slurm-topology", "ok", f"{plugin}: {facts.switches} nodes have a known switch")
    return Finding(
        "slurm-topology",
        "warn",
        f"TopologyPlugin = {plugin}: no switch is known",
        "nothing: replicas are placed without regard to switches, and a lost switch counts as many lost nodes",
    )


def _preemption(facts: SlurmFacts) -> Finding:
    mode = facts.partition.get("PreemptMode") or facts.config.get("PreemptMode", "")
    grace = facts.partition.get("GraceTime", "0")
    if mode.upper() in ("", "OFF", "REQUEUE"):
        return Finding("slurm-preemption", "ok", f"PreemptMode = {mode or 'OFF'}, GraceTime = {grace} s")
    if "CANCEL" in mode.upper():
        return Finding(
            "slurm-preemption",
            "warn",
            f"PreemptMode = {mode}, GraceTime = {grace} s: preempted tasks do not come back by themselves",
            "the broker submits them anew; prefer a partition or QOS with REQUEUE",
        )
    return Finding(
        "slurm-preemption",
        "warn",
        f"PreemptMode = {mode}: a suspended replica answers nobody and is taken for dead",
        "use a partition or QOS that is not preempted by suspension",
    )


def _submit(facts: SlurmFacts) -> Finding:
    if facts.refused:
        return Finding(
            "slurm-submit",
            "fail",
            f"sbatch --test-only refuses: {'; '.join(facts.refused)}",
            "correct partition, account, time and resources of [slurm] (docs/howto/new-site.md, section 2)",
        )
    if not facts.tried:
        return Finding("slurm-submit", "skipped", "no deployment was named")
    return Finding("slurm-submit", "ok", f"{facts.tried} job(s) of the deployment would be taken")


def _number(text: str) -> int | None:
    found = re.match(r"\d+", text)
    return int(found[0]) if found else None
