"""The checks on nodes that Slurm is asked for: a short job, waited for."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from exahpc.deployment import render
from exahpc.deployment.spec import Deployment
from exahpc.errors import SlurmError
from exahpc.launch.doctor import run
from exahpc.launch.doctor.finding import Finding, ordered
from exahpc.slurm import scripts
from exahpc.slurm.api import ENDED, SlurmClient
from exahpc.slurm.submission import doctor_submission
from exahpc.wire.folder import write_atomic

PACE = 2.0
"""Seconds between two looks at the report; Slurm is asked at every fifth."""
_GRACE = 5
"""Looks after the job's end: the report may come late on a shared file system."""


class Report(msgspec.Struct, frozen=True):
    """What `exahpc doctor --json` prints, as far as it is read again."""

    findings: list[Finding]


def on_nodes(
    deployment: Deployment,
    home: Path,
    client: SlurmClient,
    nodes: int,
    limit: str,
    told: Callable[[str], None],
) -> list[Finding]:
    """Submit the doctor to `nodes` nodes, wait, and join what it found with what is seen from here.

    limit: of the job, in Slurm's form. Raises SlurmError when Slurm refuses it, or it ends without a report; when
    we are interrupted, the job is cancelled.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".doctor-{deployment.name}-", dir=home))
    write_atomic(work / "deployment.toml", render.toml(deployment).encode())
    (work / "logs" / "slurm").mkdir(mode=0o700, parents=True)
    python = deployment.launcher.python or sys.executable
    made = doctor_submission(deployment, work, python, scripts.directory(), nodes=nodes, time=limit)
    job = client.submit(made)
    told(f"submitted as job {job}: {nodes} node(s) for at most {limit}")
    try:
        found = _await(client, job, work)
    finally:
        with contextlib.suppress(SlurmError):
            client.cancel(job)
    shutil.rmtree(work, ignore_errors=True)
    return joined(list(run.common(deployment, home)), found)


def joined(login: list[Finding], nodes: list[Finding]) -> list[Finding]:
    """Of Slurm itself the login node knows better: nodes may not be allowed to ask."""
    known = {finding.check for finding in login if finding.verdict != "skipped"}
    kept = [one for one in nodes if one.check not in known or not one.check.startswith("slurm-")]
    return ordered([*login, *kept], "no node told")


def _await(client: SlurmClient, job: str, work: Path) -> list[Finding]:
    report, looks, over = work / "report.json", 0, 0
    while not report.exists():
        if looks % 5 == 4 or over:
            (record,) = client.jobs([job])
            over += record.state in ENDED
            if over > _GRACE:
                raise SlurmError(f"job {job} ended ({record.raw}) without a report: {_tail(work)}; see {work}")
        looks += 1
        time.sleep(PACE)
    return msgspec.json.decode(report.read_bytes(), type=Report).findings


def _tail(work: Path) -> str:
    for file in (work / "doctor.log", *sorted((work / "logs" / "slurm").glob("*"))):
        with contextlib.suppress(OSError):
            if words := " ".join(file.read_text(errors="replace").split())[-400:]:
                return words
    return "its log is empty"
