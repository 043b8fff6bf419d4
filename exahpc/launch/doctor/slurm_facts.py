"""Asks Slurm what `judge_slurm` wants to know. Nothing is submitted."""

from __future__ import annotations

import re
from pathlib import Path

from exahpc.deployment.rules import merged
from exahpc.deployment.spec import Deployment
from exahpc.launch import cluster
from exahpc.launch.doctor.facts import SlurmFacts
from exahpc.slurm import features, scripts, topology
from exahpc.slurm.process import ask


def gather(deployment: Deployment | None, folder: Path) -> SlurmFacts:
    """folder: of the deployment, which need not be there. Raises SlurmError when Slurm cannot be asked."""
    config = features.config()
    refused, tried = _tried(deployment, folder) if deployment else ((), 0)
    return SlurmFacts(
        version=features.version(),
        config=config,
        mpi=plugins((listed := ask(("srun", "--mpi=list"))).out + listed.error),
        partition=_partition(deployment),
        switches=len(topology.leaves(ask(("scontrol", "show", "topology")).out)),
        refused=refused,
        tried=tried,
    )


def plugins(text: str) -> tuple[str, ...]:
    """Names in `srun --mpi=list`: one a line in newer Slurm, "MPI plugin types are..." before them."""
    words = (line.strip() for line in text.replace("srun:", "").splitlines())
    return tuple(word for word in words if re.fullmatch(r"[a-z][a-z0-9_]*", word))


def _partition(deployment: Deployment | None) -> dict[str, str]:
    named = merged(deployment.slurm, deployment.pool[0].slurm).partition if deployment else None
    answer = ask(("scontrol", "--oneliner", "show", "partition", *((named.split(",")[0],) if named else ())))
    words = dict(word.partition("=")[::2] for word in answer.out.split("\n", 1)[0].split()) if answer.ok else {}
    return {key: words[key] for key in ("PartitionName", "PreemptMode", "GraceTime") if key in words}


def _tried(deployment: Deployment, folder: Path) -> tuple[tuple[str, ...], int]:
    """(what sbatch says against the deployment's jobs, how many it was asked)."""
    refused, tried = [], 0
    for name, made in cluster.submissions(deployment, folder, scripts.directory()).items():
        argv = made.argv()
        flags = [
            flag for flag in argv[1:] if not flag.startswith(("--chdir=", "--output="))
        ]  # not there before `up`
        answer = ask((argv[0], "--test-only", *flags))
        tried += 1
        if not answer.ok:
            refused.append(f"{name}: {' '.join(answer.error.split())}")
    return tuple(refused), tried
