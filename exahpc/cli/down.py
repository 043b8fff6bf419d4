"""`exahpc down`: an orderly end."""

from __future__ import annotations

import shutil
import time

import click

from exahpc.cli.common import deployment_argument, notes, opened, slurm_client
from exahpc.launch import stop, submitted


@click.command()
@deployment_argument()
@click.option(
    "--seconds",
    type=click.FloatRange(0),
    default=30.0,
    show_default=True,
    help="Longest time for running requests to finish; after it they are cut off with an error.",
)
@click.option(
    "--purge",
    is_flag=True,
    help="Also remove the deployment's folder: secrets, logs, journals, clients' files and batches.",
)
def down(name: str, seconds: float, purge: bool) -> None:
    """Drain NAME and end it: no process and no job is left.

    Its folder stays (keys, logs, files, batches) until --purge.
    """
    folder, deployment = opened(name)
    client = slurm_client(deployment)
    if stop.left(folder, client):
        reason = stop.drain(folder, seconds)
        if reason is not None:
            notes.print(f"cannot drain ({reason}); ending the processes", markup=False, soft_wrap=True)
            seconds = 0.0
    with notes.status("draining") as shown:
        stop.finish(
            folder,
            client,
            seconds=seconds + stop.GRACE if seconds else 0.0,
            clock=time.monotonic,
            sleep=time.sleep,
            told=lambda names: shown.update(f"still running: {', '.join(names[:6])}"),
        )
    if purge:
        shutil.rmtree(folder.path)
    elif going := sum(not found.state.ended for found in submitted.of_deployment(folder)):
        notes.print(f"{going} submitted batches have not ended: they go on with the next `exahpc up` of this name")
    notes.print(f"{folder.path.name} is down" + (" and removed" if purge else ""))
