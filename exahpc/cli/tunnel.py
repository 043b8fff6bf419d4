"""`exahpc tunnel`: a local port that leads to the endpoint, wherever the head is."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import signal
from pathlib import Path

import click

from exahpc.cli.access import show_usage
from exahpc.cli.common import deployment_argument, notes, opened
from exahpc.errors import DeploymentError
from exahpc.launch import place
from exahpc.launch import tunnel as ways
from exahpc.launch.forward import LOOPBACK
from exahpc.launch.whereabouts import Remote, watch
from exahpc.wire.folder import Endpoint, write_atomic

PORT = 8000
"""First choice of the local port."""


def _destination(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and (value.startswith("-") or not value.strip()):
        raise click.BadParameter("give a destination as ssh takes it: USER@LOGIN")
    return value


@click.command()
@deployment_argument()
@click.option("--via", metavar="USER@LOGIN", callback=_destination, help="Machine that reaches the head, for ssh.")
@click.option("--port", type=click.IntRange(1, 65535), help=f"Local port; default: {PORT}, or a free one.")
def tunnel(name: str, via: str | None, port: int | None) -> None:
    """Keep a local port forwarded to the endpoint of NAME until Ctrl-C, also when its head moves.

    Where this machine does not reach the head, ssh does: by way of --via, else straight to the head's machine.
    On a laptop that does not see the deployment's folder, --via is needed: the folder is then read there.
    """
    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        asyncio.run(_run(name, via, port))


async def _run(name: str, via: str | None, port: int | None) -> None:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):  # no ssh is left behind
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    remote: Remote | None = None
    model, key = None, f"exahpc key {shlex.quote(name)}"
    try:
        folder, deployment = opened(name)
        records, model = watch(folder), deployment.served_name
    except DeploymentError as error:
        if via is None:
            raise DeploymentError(f"{error}; if it lies elsewhere: --via USER@LOGIN") from None
        remote = Remote(via, name)
        records, key = remote.watch(), f"ssh {shlex.quote(via)} {key}"

    def say(endpoint: Endpoint) -> None:
        local = f"{endpoint.url.partition(':')[0]}://{LOOPBACK}:{bound}/v1"
        click.echo(local)
        show_usage(local, model, key, _saved(name, remote.ca) if remote is not None else endpoint.ca)

    way = ways.Tunnel(via, lambda what: notes.print(what, markup=False), say)
    bound = await way.forwarder.listen(*((port,) if port is not None else (PORT, 0)))
    await way.follow(records)


def _saved(name: str, certificate: bytes) -> str | None:
    """Keep the certificate to trust where this machine's clients can read it; None when there is none."""
    if not certificate:
        return None
    path = place.cache().parent / "tunnels" / f"{Path(name).name}.crt"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(path, certificate + b"\n")
    return str(path)
