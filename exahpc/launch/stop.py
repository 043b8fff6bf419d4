"""`down`: drain, wait, then make sure that nothing is left."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from collections.abc import Callable, Iterator

from exahpc.deployment import parse
from exahpc.errors import ExahpcError, LinkError
from exahpc.launch import cluster, local
from exahpc.launch.start import SLURM_PACE
from exahpc.models import copies
from exahpc.slurm import remote
from exahpc.slurm.api import SlurmClient
from exahpc.wire import messages as m
from exahpc.wire.folder import Folder, runtime_directory
from exahpc.wire.link import ask

GRACE = 15.0
"""Seconds on top of the drain for processes to end in order."""


def drain(folder: Folder, seconds: float) -> str | None:
    """Ask the broker to drain the fleet; returns why that was not possible, or None."""
    record = folder.head()
    if record is None:
        return "no head has reported yet"
    try:
        answer = ask(folder.fleet_key(), record.address, m.DrainAll(seconds), m.BrokerToClient, 5.0)
    except LinkError as error:
        return str(error)
    return answer.reason if isinstance(answer, m.Refused) else None


def left(folder: Folder, client: SlurmClient | None) -> list[str]:
    """What of the deployment still runs: supervisors of this machine (or what they left behind) and Slurm jobs."""
    return local.running(folder) + _jobs(folder, client)


def _jobs(folder: Folder, client: SlurmClient | None) -> list[str]:
    if client is None:
        return []
    return [f"job {record.id} ({record.raw})" for record in cluster.living(client, folder)]


def _paces(slurm: bool) -> Iterator[float]:
    """Seconds between two looks: Slurm serves everybody, so it is asked ever more rarely."""
    pace = 2.0 if slurm else 0.2
    while True:
        yield pace
        pace = min(2 * pace, SLURM_PACE) if slurm else pace


def finish(
    folder: Folder,
    client: SlurmClient | None,
    *,
    seconds: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    told: Callable[[list[str]], None] = lambda names: None,
) -> None:
    """Wait up to `seconds` for an orderly end, then cancel and kill what is left, and clear the traces of a live
    deployment. Secrets, logs and batch results stay. Only supervisors and jobs are waited for: nothing ends
    processes that have lost theirs.

    Raises ExahpcError naming what could not be ended.
    """
    local.close_marks(folder)
    end, paces = clock() + seconds, _paces(client is not None)
    while (names := local.living(folder) + (jobs := _jobs(folder, client))) and clock() < end:
        told(names)
        sleep(next(paces))
    if client is not None and jobs:
        cluster.cancel(client, folder)
        end, paces = clock() + 60, _paces(True)
        while _jobs(folder, client) and clock() < end:
            sleep(next(paces))
    local.stop(folder, 10.0)
    names = left(folder, client)
    if names:
        raise ExahpcError(f"still running: {', '.join(names)}; try `exahpc down` again, or scancel them")
    for name in ("head.json", "endpoint.json"):
        (folder.path / name).unlink(missing_ok=True)
    remote.withdraw(folder.path)  # else the next `exahpc watch` submits what a dead broker wanted
    if client is None:  # on a cluster this machine has no copies; agents remove theirs
        with contextlib.suppress(ExahpcError):
            copies.Store(copies.directory(parse.load(folder.toml).model.stage, os.environ)).sweep()
    with contextlib.suppress(LinkError):  # somebody else's directory
        shutil.rmtree(runtime_directory(folder.path, socket.gethostname()), ignore_errors=True)
