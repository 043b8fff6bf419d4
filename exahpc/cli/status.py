"""`exahpc status`: what runs, what is ill, what waits."""

from __future__ import annotations

import contextlib
import sys
import time

import click
import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from exahpc.cli import exits, fleet_view
from exahpc.cli.common import deployment_argument, json_text, notes, opened, slurm_client
from exahpc.deployment.spec import Deployment
from exahpc.errors import DeploymentError, LinkError
from exahpc.launch import place, ready, stop
from exahpc.wire.folder import Folder
from exahpc.wire.messages import StatusReply

_WIDE = 160
"""Characters that the tables take at most, long stories aside."""


@click.command()
@deployment_argument(required=False)
@click.option("--json", "as_json", is_flag=True, help="Everything the broker knows, or the list, as JSON.")
@click.option("--all", "every", is_flag=True, help="A row for each replica, also of a large deployment.")
@click.option("--watch", is_flag=True, help="Look again every two seconds until Ctrl-C.")
def status(name: str | None, as_json: bool, every: bool, watch: bool) -> None:
    """Show the state of NAME; without NAME, list the deployments.

    Of a large deployment only the pools are shown, and what is not well.

    Exit code 0 when every wanted replica is ready, 3 when some are not, 1 when no broker answers. The list always
    ends with 0.
    """
    if name is None:
        _list(as_json=as_json)
        return
    folder, deployment = opened(name)
    if watch:
        first = _view(folder, ready.look(folder), every=every)
        with contextlib.suppress(KeyboardInterrupt), Live(first, console=Console(), auto_refresh=False) as shown:
            while True:
                time.sleep(2)
                shown.update(_view(folder, ready.look(folder), every=every), refresh=True)
        return
    reply = ready.look(folder)
    if reply is None:
        raise LinkError(_silent(folder, deployment))
    if as_json:
        click.echo(json_text(reply))
    else:
        console = Console(highlight=False)
        if not console.is_terminal:  # a pipe or a file cuts nothing off
            console.width = max(console.width, _WIDE)
        console.print(_view(folder, reply, every=every))
    if reply.ready < reply.wanted:
        sys.exit(exits.NOT_WHOLE)


class Listed(msgspec.Struct, frozen=True):
    """One line of `exahpc status --json`. state: "3/4 ready", "down" or "no answer"; ready, wanted: replicas, None
    while no broker answers."""

    name: str
    state: str
    ready: int | None
    wanted: int | None
    model: str
    folder: str


def _list(*, as_json: bool) -> None:
    names = place.names()
    found = [_listed(name) for name in names]
    if as_json:
        click.echo(json_text(found))
        return
    if not names:
        text = f"no deployments in {place.home()}; start one with: exahpc up FILE"
        notes.print(text, markup=False, soft_wrap=True)
    for one in found:
        click.echo(f"{one.name}\t{one.state}\t{one.model}\t{one.folder}")


def _listed(name: str) -> Listed:
    folder, deployment = opened(name)
    model, path = deployment.served_name, str(folder.path)
    reply = ready.look(folder, 2.0)
    if reply is None:
        return Listed(name, _unanswered(folder, deployment), None, None, model, path)
    return Listed(name, f"{reply.ready}/{reply.wanted} ready", reply.ready, reply.wanted, model, path)


def _unanswered(folder: Folder, deployment: Deployment) -> str:
    """In a list Slurm is not asked, once for each deployment: of its jobs nothing is known then."""
    if deployment.launcher.kind == "local":
        with contextlib.suppress(DeploymentError):  # it was started on another machine
            return "no answer" if stop.left(folder, None) else "down"
    return "no answer"


def _silent(folder: Folder, deployment: Deployment) -> str:
    """Why no broker answers, as far as can be seen from here."""
    name = folder.path.name
    left = stop.left(folder, slurm_client(deployment))
    if not left:
        return f"{name} is down: nothing of it runs (start it with `exahpc up`)"
    return (
        f"no broker of {name} answers; running or waiting: {', '.join(left[:8])} (see `exahpc logs {name} head`)"
    )


def _view(folder: Folder, reply: StatusReply | None, *, every: bool = False) -> RenderableType:
    if reply is None:
        return Text(f"{folder.path.name}: no broker answers")
    colour = "green" if reply.ready >= reply.wanted else "yellow"
    parts: list[RenderableType] = [
        Text.assemble(
            (folder.path.name, "bold"), "  ", (f"{reply.ready}/{reply.wanted} replicas ready", colour),
            f"  broker epoch {reply.epoch}  {reply.node_hours:.1f} node-hours",
        ),
        *fleet_view.fleet(reply, every=every),
    ]  # fmt: skip
    if reply.entries:
        parts.append(fleet_view.entries(reply.entries, every=every))
    if reply.batches:
        parts.append(_batches(reply))
        live = (batch for batch in reply.batches if batch.state in ("opening", "running"))
        parts += [Text(f"{batch.batch}: {batch.note}", "yellow") for batch in live if batch.note]
    parts += [Text(line, "yellow") for line in reply.notes]
    return Group(*parts)


def _batches(reply: StatusReply) -> Table:
    table = fleet_view.table("batch", "state", "rows", "ok", "failed", "leased")
    for batch in reply.batches:
        counts = (batch.total, batch.ok, batch.failed, batch.leased)
        table.add_row(batch.batch, batch.state, *map(str, counts))
    return table
