"""A deployment that stands for the time of a measurement."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from exahpc.deployment.spec import Deployment
from exahpc.launch import place, prepare, ready, start, stop
from exahpc.slurm.api import SlurmClient
from exahpc.wire.folder import Folder


@contextmanager
def standing(
    deployment: Deployment,
    client: SlurmClient | None,
    told: Callable[[str], None],
    *,
    timeout: float | None = None,
) -> Iterator[Folder]:
    """Its folder, once all replicas are ready; down in any case, and gone when all went well.

    What an earlier run of the same command has left of it is ended first. client: None with the local launcher;
    timeout: seconds until it must be ready. Raises what `up` raises.
    """
    path = place.home() / deployment.name
    folder = Folder(path)
    with start.alone(path):
        if (path / "deployment.toml").exists() and stop.left(folder, client):
            told(f"{deployment.name} of an earlier run is still there: ending it")
            _end(folder, client)
        folder, _ = prepare.create(path, deployment)
        try:
            start.begin(folder, deployment, client, told=told)
            ended = start.ended(folder, deployment, client, time.monotonic)
            shown = ""
            for look in ready.wait(
                folder,
                deployment.first_replicas,
                ended=ended,
                clock=time.monotonic,
                sleep=time.sleep,
                seconds=timeout,
            ):
                for line in (*look.news, *([look.text] if look.text != shown else ())):
                    told(line)
                shown = look.text
            yield folder
        except BaseException:
            _end(folder, client)
            raise
        _end(folder, client)
    shutil.rmtree(path, ignore_errors=True)


def _end(folder: Folder, client: SlurmClient | None) -> None:
    """Nothing of it runs any more. Nobody's request is cut off: the load has ended before."""
    drained = stop.drain(folder, 1.0) is None
    stop.finish(
        folder,
        client,
        seconds=1.0 + stop.GRACE if drained else 0.0,
        clock=time.monotonic,
        sleep=time.sleep,
    )
