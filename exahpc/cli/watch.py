"""`exahpc watch`: Slurm's commands for a broker whose node may not run them."""

from __future__ import annotations

import itertools
import time

import click

from exahpc.cli.common import deployment_argument, notes, opened, slurm_client
from exahpc.errors import DeploymentError, ExahpcError
from exahpc.launch import stop
from exahpc.slurm.api import SlurmClient
from exahpc.slurm.remote import Watcher
from exahpc.wire.folder import Folder

_PACE = 0.2
_LOOK = 300  # turns between two looks whether the deployment is down


@click.command()
@deployment_argument()
def watch(name: str) -> None:
    """Run Slurm's commands for the broker of NAME, on a login node, until NAME is down or Ctrl-C.

    For sites whose compute nodes may not run sbatch and scontrol (launcher.commands = "watch"). While nobody
    watches, the deployment serves on, but lost tasks are not submitted again, and no successor is before a task's
    end. Start it again at any time.
    """
    folder, deployment = opened(name)
    client = slurm_client(deployment)
    if client is None or deployment.launcher.commands != "watch":
        raise DeploymentError(
            f'{folder.path.name} runs its commands itself: watching is for launcher.commands = "watch"'
        )
    watcher = Watcher(folder.path, client, lambda line: notes.print(f"{time.strftime('%T')} {line}", markup=False))
    notes.print(f"watching {folder.path.name} through the {client.name}; Ctrl-C ends it", markup=False)
    try:
        for turn in itertools.count(1):
            if not watcher.turn():
                time.sleep(_PACE)
            if turn % _LOOK == 0 and _down(folder, client):
                notes.print(f"{folder.path.name} is down", markup=False)
                return
    except KeyboardInterrupt:
        pass
    finally:
        watcher.close()


def _down(folder: Folder, client: SlurmClient) -> bool:
    if folder.head() is not None:
        return False
    try:
        return not stop.left(folder, client)
    except ExahpcError:
        return False
