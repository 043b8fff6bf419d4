"""`python -m exahpc.broker --folder F`: the broker of one deployment, supervised by the head's script.

Exit codes: 0 the head is over (drained, or another broker has taken over), 75 hand the head's job back to Slurm
(walltime is near), 128 + signal when told to end at once, anything else a crash that the supervisor answers with a
restart.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import click

from exahpc.broker.main import EXIT_REQUEUE, Broker, run
from exahpc.deployment.parse import load
from exahpc.deployment.spec import Deployment
from exahpc.errors import ExahpcError
from exahpc.slurm.api import SlurmClient
from exahpc.telemetry import logs
from exahpc.wire.address import head_address
from exahpc.wire.folder import Folder

_log = logging.getLogger("exahpc.broker")


def _connect(folder: Folder, deployment: Deployment) -> SlurmClient:
    if deployment.launcher.commands == "watch":
        from exahpc.slurm.remote import Remote

        return Remote(folder.path)
    from exahpc.slurm.choose import choose

    client, why = choose()
    _log.info("Slurm is asked through %s: %s", client.name, why)
    return client


def _broker(folder: Folder, deployment: Deployment) -> Broker:
    if deployment.launcher.kind == "local":
        return Broker(folder, deployment, head_address(deployment), None)
    from exahpc.broker.cluster import Cluster

    cluster = Cluster(deployment, folder, lambda: _connect(folder, deployment))
    return Broker(folder, deployment, head_address(deployment), cluster)


def _requeue_head(folder: Folder, deployment: Deployment) -> None:
    """Ask Slurm for it where exit code 75 does not do it."""
    from exahpc.slurm import here

    job = here.task_id()
    if job is None or here.has_requeue_exit(EXIT_REQUEUE):
        return
    try:
        _connect(folder, deployment).requeue(job)
    except ExahpcError as error:
        _log.error("the head's job %s cannot be requeued: %s", job, error)


@click.command()
@click.option("--folder", "path", required=True, type=click.Path(path_type=Path, exists=True, file_okay=False))
def main(path: Path) -> None:
    """Run the broker of the deployment in this folder."""
    logs.begin("%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        folder = Folder(path)
        deployment = load(folder.toml, str(path / "deployment.toml"))
        code = run(lambda: _broker(folder, deployment))
        if code == EXIT_REQUEUE:
            _requeue_head(folder, deployment)
    except (ExahpcError, OSError) as error:
        _log.error("%s", error)
        code = getattr(error, "exit_code", 1)
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)  # a thread that waits for Slurm or a slow disk must not hold up the restart


if __name__ == "__main__":
    main()
