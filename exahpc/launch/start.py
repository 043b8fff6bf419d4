"""`up`: everything between a checked deployment and its first processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from exahpc.deployment import parse
from exahpc.deployment.spec import Deployment
from exahpc.errors import DeploymentError, SlurmError
from exahpc.launch import cluster, local, ready
from exahpc.slurm.api import SlurmClient
from exahpc.slurm.scripts import directory
from exahpc.wire.folder import Folder

SLURM_PACE = 10.0
"""Seconds between two questions to Slurm: it serves everybody."""


def plan(deployment: Deployment, path: Path) -> tuple[list[tuple[str, ...]], list[Path]]:
    """(command lines in their order, files that they run)."""
    found = directory()
    files = sorted(
        file for file in found.iterdir() if file.name in ("head.sbatch", "replica.sbatch", "supervise.sh")
    )
    commands: list[tuple[str, ...]] = []
    if deployment.launcher.kind == "local":
        commands += local.commands(deployment, path, found).values()
    else:
        if deployment.head.placement == "local":
            commands.append(local.commands(deployment, path, found)["head"])
        commands += [made.argv() for made in cluster.submissions(deployment, path, found).values()]
    return commands, files


def refuse_twice(path: Path, client: SlurmClient | None) -> None:
    """Raises DeploymentError when a deployment of this name lives, in whatever state, or may live."""
    folder = Folder(path)
    if not (path / "deployment.toml").exists():
        return
    name = path.name
    before = parse.load(folder.toml, str(path / "deployment.toml"))
    if ready.look(folder, 3.0) is not None:
        raise DeploymentError(
            f"{name} is up already: see `exahpc status {name}`, or end it with `exahpc down {name}`"
        )
    left = local.running(folder)
    if client is not None and before.launcher.kind == "slurm":
        left += [f"job {record.id} ({record.raw})" for record in cluster.living(client, folder)]
    if left:
        raise DeploymentError(f"{name} is starting or ending ({', '.join(left[:5])}): first `exahpc down {name}`")


def begin(
    folder: Folder, deployment: Deployment, client: SlurmClient | None, *, told: Callable[[str], None]
) -> None:
    """Start or submit everything. Raises SlurmError when Slurm refuses; then nothing stays submitted."""
    for name in ("head.json", "endpoint.json"):  # of an earlier life: nobody may wait on an old address
        (folder.path / name).unlink(missing_ok=True)
    found = directory()
    if client is None:
        commands = local.commands(deployment, folder.path, found)
        local.start(folder, commands)
        told(f"started on this machine: {', '.join(commands)}")
        return
    wanted = cluster.submissions(deployment, folder.path, found)
    cluster.submit(client, folder, wanted, lambda name, job: told(f"submitted {name} as job {job}"))
    if deployment.head.placement == "local":
        local.start(folder, {"head": local.commands(deployment, folder.path, found)["head"]})
        told("started the head on this machine")


def ended(
    folder: Folder, deployment: Deployment, client: SlurmClient | None, clock: Callable[[], float]
) -> Callable[[], str | None]:
    """A question for `ready.wait`: why can this never become ready? Slurm is asked only while no head can tell."""
    asked = clock()

    def question() -> str | None:
        nonlocal asked
        logs = folder.path / "logs"
        if client is None:
            running = local.running(folder)
            names = [name for name in local.supervisors(folder) if name not in running]
            return f"{', '.join(names)} ended while starting: look into {logs}" if names else None
        if clock() - asked < SLURM_PACE or folder.head() is not None:
            return None
        asked = clock()
        try:
            living = cluster.living(client, folder)
        except SlurmError:
            return None  # a failed question says nothing about the jobs
        return None if living else f"all jobs have ended: look into {logs}, and `sacct` for Slurm's reason"

    return question
