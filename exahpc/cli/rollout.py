"""`exahpc rollout`: from one version of a deployment to another, under load."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

import click
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from exahpc.cli.common import deployment_argument, json_text, notes, opened
from exahpc.cli.fleet_view import latency, table
from exahpc.deployment.versions import BASE, named
from exahpc.errors import ExahpcError, Interrupted
from exahpc.launch import rollout as launched
from exahpc.wire import messages as m
from exahpc.wire.folder import Folder

_PHASES: dict[m.RolloutPhase, str] = {
    "idle": "none has been made",
    "canary": "the first tasks start with the new version",
    "judging": "the new version is judged by its first requests",
    "widening": "more and more tasks change",
    "done": "all tasks have the new version",
    "reverting": "tasks go back to the old version",
    "reverted": "rolled back to the old version",
}

_wait = click.option(
    "--wait/--no-wait", default=True, help="Wait until it has ended (default), or come back at once."
)


@click.group()
def rollout() -> None:
    """Bring a new version of a running deployment into force, a few tasks first.

    A version is a deployment file under a label. It may have another model, tokenizer, number format or context,
    other settings of the engine and limits of requests; pools, jobs and the head stay. The first tasks (the
    canary) are judged by their errors, answers and latency against the old version; when they are no good,
    everything goes back by itself. The file's [rollout] table rules.
    """


@rollout.command()
@deployment_argument()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=False)
@click.option(
    "--label",
    help=f'Label of the version; default: a hash of FILE. Without FILE: go to this known one ("{BASE}": '
    "the one of `exahpc up`).",
)
@_wait
def start(name: str, file: Path | None, label: str | None, wait: bool) -> None:
    """Begin to bring FILE into force in NAME.

    Exit code 0 when it is in force, 1 when it was rolled back.
    """
    folder, base = opened(name)
    before = folder.versions()
    if file is not None:
        new = launched.read(base, file)
        launched.tell(folder, m.RolloutQuery())  # nothing is left behind where no broker is
        version = launched.add(folder, new, label)
    elif label is not None:
        version = launched.known(folder, label)
    else:
        raise click.UsageError("give FILE, or the --label of a known version")
    launched.start(folder, version, fresh=bool(version) and version not in before)
    notes.print(f"rollout to {named(version)} has begun", markup=False)
    if wait:
        _follow(folder, version)


@rollout.command()
@deployment_argument()
@click.option("--json", "as_json", is_flag=True, help="Everything the broker knows of it, as JSON.")
def status(name: str, as_json: bool) -> None:
    """Show where the rollout of NAME stands, and what both versions have done."""
    found = launched.tell(opened(name)[0], m.RolloutQuery())
    if as_json:
        click.echo(json_text(found))
    else:
        Console(highlight=False).print(_view(found))


@rollout.command()
@deployment_argument()
@click.option("--wait/--no-wait", default=False, help="Wait until it has ended, or come back at once (default).")
def promote(name: str, wait: bool) -> None:
    """Go on without judging: for new versions that few ask, or that are known to be slower.

    Tasks that do not get ready still end the rollout; with --wait the exit code is then 1.
    """
    _command(name, "promote", wait)


@rollout.command()
@deployment_argument()
@_wait
def abort(name: str, wait: bool) -> None:
    """Stop the rollout of NAME and go back to the old version."""
    _command(name, "abort", wait)


@rollout.command()
@deployment_argument()
@_wait
def rollback(name: str, wait: bool) -> None:
    """Go back to the version before the last rollout, after that one has ended."""
    _command(name, "rollback", wait)


def _command(name: str, command: Literal["promote", "abort", "rollback"], wait: bool = False) -> None:
    folder, _ = opened(name)
    found = launched.tell(folder, m.RolloutCommand(command))
    notes.print(_line(found), markup=False, soft_wrap=True)
    if wait:
        _follow(folder, found.versions[-1].version if command == "promote" else found.current)


def _follow(folder: Folder, wanted: str) -> None:
    """Raises ExahpcError when another version is in force in the end."""
    told = ""
    try:
        for found in launched.follow(folder, time.monotonic, time.sleep):
            if (line := _line(found)) != told:
                notes.print(line, markup=False, soft_wrap=True)
            told = line
    except KeyboardInterrupt:
        raise Interrupted(
            f"stopped looking; the rollout goes on (exahpc rollout status {folder.path.name})"
        ) from None
    if found.current != wanted:
        raise ExahpcError(f"{named(wanted)} is not in force: {found.story}")
    click.echo(named(found.current))


def _line(found: m.RolloutStatus) -> str:
    words = f"{found.phase}: {_PHASES[found.phase]}"
    tasks = ", ".join(f"{named(v.version)} {v.tasks}/{found.tasks} tasks" for v in found.versions)
    return "; ".join(filter(None, (words, tasks, found.story)))


def _view(found: m.RolloutStatus) -> RenderableType:
    colour = {"done": "green", "reverting": "red", "reverted": "red"}.get(found.phase, "cyan")
    since = "" if found.phase == "idle" else f" (since {found.seconds:.0f} s)"
    parts: list[RenderableType] = [
        Text.assemble("in force: ", (named(found.current), "bold")),
        Text.assemble("rollout: ", (found.phase, colour), f", {_PHASES[found.phase]}{since}"),
    ]
    if found.story:
        parts.append(Text(found.story, "yellow"))
    if found.versions:
        parts.append(_table(found))
    return Group(*parts)


def _table(found: m.RolloutStatus) -> Table:
    shown = table("version", "tasks", "ready", "share", "requests", "failed", "odd", "deaths", "latency")
    for which in found.versions:
        shown.add_row(
            named(which.version),
            f"{which.tasks}/{found.tasks}",
            str(which.ready),
            f"{100 * which.share:.0f} %",
            str(which.served + which.failed),
            str(which.failed),
            str(which.odd),
            str(which.deaths),
            latency(which.ttft, which.tbt),
        )
    return shown
