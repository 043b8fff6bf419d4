"""The local launcher: the cluster's own batch scripts, run as processes of this machine."""

from __future__ import annotations

import shutil
import signal
import socket
from pathlib import Path

import msgspec

from exahpc.deployment.spec import Deployment
from exahpc.errors import DeploymentError
from exahpc.launch import processes
from exahpc.launch.processes import Started
from exahpc.slurm.submission import head_submission, pool_submission
from exahpc.wire.folder import Folder, write_atomic


def commands(deployment: Deployment, folder: Path, scripts: Path) -> dict[str, tuple[str, ...]]:
    """Command line of each supervisor, by its name: "head", then "POOL-TASK"."""
    python = deployment.launcher.python or "python3"
    head = head_submission(deployment, folder, python, scripts)
    made: dict[str, tuple[str, ...]] = {"head": ("bash", head.script, *head.arguments)}
    for pool in deployment.pool:
        found = pool_submission(deployment, pool, folder, python, scripts)
        for task in range(pool.tasks):
            mark = (
                ()
                if pool.scaling.least is None
                else ("--wanted", str(Folder(folder).wanted_mark(pool.name, task)))
            )
            made[f"{pool.name}-{task}"] = ("bash", found.script, *found.arguments, "--task", str(task), *mark)
    return made


def open_marks(folder: Folder, deployment: Deployment) -> None:
    """Let the supervisors of pools that scale wait; the broker marks the tasks that are wanted."""
    close_marks(folder)
    for pool in deployment.pool:
        if pool.scaling.least is not None:
            folder.wanted_mark(pool.name, 0).parent.mkdir(mode=0o700, parents=True, exist_ok=True)


def close_marks(folder: Folder) -> None:
    """No supervisor waits any more."""
    shutil.rmtree(folder.wanted_mark("", 0).parent, ignore_errors=True)


def start(folder: Folder, supervisors: dict[str, tuple[str, ...]]) -> None:
    """Start supervisors, each in its own session, and note who they are in folder/local/."""
    for name, argv in supervisors.items():
        started = processes.start(argv, folder.logs(f"{name}.supervisor.log"))
        write_atomic(folder.path / "local" / f"{name}.json", msgspec.json.encode(started))


def supervisors(folder: Folder) -> dict[str, Started]:
    """What `start` noted. Raises DeploymentError when that was on another machine."""
    found = {}
    for file in sorted((folder.path / "local").glob("*.json")):
        started = msgspec.json.decode(file.read_bytes(), type=Started)
        if started.host not in ("", socket.gethostname()):
            raise DeploymentError(
                f"{folder.path.name} was started on {started.host}: run this there, "
                f"or remove {file.parent} if that machine is gone"
            )
        found[file.stem] = started
    return found


def living(folder: Folder) -> list[str]:
    """Supervisors that still run on this machine."""
    return [name for name, process in supervisors(folder).items() if processes.alive(process)]


def running(folder: Folder) -> list[str]:
    """What still runs on this machine: supervisors, or what supervisors that are gone left behind."""
    return living(folder) or [f"process {process.pid}" for process in processes.naming(folder.path)]


def stop(folder: Folder, seconds: float) -> None:
    """End what still runs here: supervisors are asked first, then everything that names the folder is killed."""
    known = list(supervisors(folder).values())
    processes.send(known, signal.SIGTERM)
    processes.gone(known, seconds)
    processes.send(known, signal.SIGKILL)
    processes.gone(known, 5)
    for number, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        left = processes.naming(folder.path)
        processes.send(left, number)
        processes.gone(left, patience)
    for file in (folder.path / "local").glob("*.json"):
        file.unlink(missing_ok=True)
