"""`up`: everything between a checked deployment and its first processes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from exahpc.deployment import parse
from exahpc.deployment.spec import Deployment
from exahpc.errors import DeploymentError, SlurmError
from exahpc.launch import cluster, local, ready, words
from exahpc.slurm.api import SlurmClient
from exahpc.slurm.jobbook import JobBook
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


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Keep any other `up` of this deployment out. A lock of the kernel goes with its process, however that ends.

    Raises DeploymentError when another one is at work.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(path / "up.lock", "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DeploymentError(
                f"another `exahpc up` of {path.name} is at work: wait for it, then see `exahpc status {path.name}`"
            ) from None
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
                raise  # else a file system without locks: `refuse_twice` has to do
        yield


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
        local.open_marks(folder, deployment)
        local.start(folder, commands)
        told(f"started on this machine: {', '.join(commands)}")
        return
    wanted = cluster.submissions(deployment, folder.path, found)
    cluster.submit(client, folder, wanted, lambda name, job: told(f"submitted {name} as job {job}"))
    if deployment.walltime.successors == "chain":
        told(f"submitted {cluster.chain(client, folder, deployment, found)} successors in advance")
    if deployment.head.placement == "local":
        local.start(folder, {"head": local.commands(deployment, folder.path, found)["head"]})
        told("started the head on this machine")


def ended(
    folder: Folder, deployment: Deployment, client: SlurmClient | None, clock: Callable[[], float]
) -> Callable[[], str | None]:
    """A question for `ready.wait`: why can this never become ready?

    A supervisor of this machine that has given up, the head's job or all jobs ended. Single tasks are the broker's
    business. Slurm is asked more rarely once a head has reported.
    """
    asked = clock()
    logs = folder.path / "logs"

    def question() -> str | None:
        nonlocal asked
        living = local.living(folder)
        gone = [name for name in local.supervisors(folder) if name not in living]
        if gone:
            return f"{', and '.join(words.ended(folder, name) for name in gone[:3])}: look into {logs}"
        headed = folder.head() is not None
        if client is None or clock() - asked < (6 if headed else 1) * SLURM_PACE:
            return None
        asked = clock()
        try:
            jobs = {record.id for record in cluster.living(client, folder)}
        except SlurmError:
            return None  # a failed question says nothing about the jobs
        head = JobBook.load(folder.path).head
        if jobs and head is not None and head not in jobs:
            last = words.last_words(folder, "head")
            said = f" (its log ends with: {last})" if last else ""
            return f"the head's job {head} has ended{said}: look into {logs}, and `sacct` for Slurm's reason"
        if jobs or (headed and deployment.head.placement == "local"):  # that one submits lost tasks again
            return None
        return f"all jobs have ended: look into {logs}, and `sacct` for Slurm's reason"

    return question
