"""`exahpc batch submit`, `watch` and `list`: batches that the deployment's clerk runs."""

from __future__ import annotations

import sys
import time
from datetime import datetime
from pathlib import Path

import click
import msgspec
from rich.console import Console

from exahpc.batch.inputs.options import Inputs
from exahpc.batch.results import Results
from exahpc.cli import exits
from exahpc.cli.batch_view import BatchView, Ending, ending
from exahpc.cli.common import json_text, notes, opened
from exahpc.cli.fleet_view import table
from exahpc.cli.inputs import takes_inputs
from exahpc.cli.signals import terminable
from exahpc.launch import place, submitted
from exahpc.launch.submitted import Found
from exahpc.wire.submissions import LineError, Phase

_OUTPUT = click.Path(dir_okay=False, path_type=Path)
_POLL = 1.0
_SHOWN = 50  # bad lines on the terminal
_SAID: dict[Phase, str] = {"validating": "checking the input", "finalizing": "writing results"}


class Submitted(msgspec.Struct, frozen=True):
    """One line of `batch list --json`. output: of the results file, "" for a batch that was ordered over HTTP."""

    batch: str
    deployment: str
    state: str
    created: int
    rows: int
    ok: int
    failed: int
    output: str
    note: str


def add_to(group: click.Group) -> None:
    """Give `exahpc batch` these commands."""
    for command in (submit, watch, listing):
        group.add_command(command)


@click.command()
@takes_inputs
@click.option("--deployment", "name", required=True, help="The deployment that runs it.")
@click.option("-o", "--output", required=True, type=_OUTPUT, help="Results file (HDF5) to make.")
@click.option("--skip-invalid", is_flag=True, help="Bad rows become error records instead of stopping the batch.")
def submit(inputs: Inputs, name: str, output: Path, skip_invalid: bool) -> None:
    """Hand the requests of INPUT to a deployment and return at once; the batch's id is printed.

    The deployment checks the rows and runs them, whether or not anybody watches. It goes on after a restart, and
    after `exahpc down` with the next `exahpc up` of this name. `exahpc batch watch` tells how far it is.
    """
    folder, _ = opened(name)
    made = submitted.submit(folder, inputs, output, skip_invalid=skip_invalid)
    if folder.head() is None:
        notes.print(f"{folder.path.name} is not up: the batch begins when it is", markup=False, soft_wrap=True)
    click.echo(made.id)


@click.command(epilog=exits.EPILOG)
@click.argument("what", metavar="ID|OUTPUT", type=click.Path(path_type=Path))
@click.option("--deployment", "name", help="Its deployment  [default: any of yours]")
@click.option("--json", "as_json", is_flag=True, help="The last line of standard output tells the end as JSON.")
def watch(what: Path, name: str | None, as_json: bool) -> None:
    """Show how far a submitted batch is until it ends. Ctrl-C only ends the watching."""
    found, started = submitted.find(what, name), time.monotonic()
    with terminable(), BatchView(notes, lambda: _waits(found)) as view:
        while not found.state.ended:
            view.report(msgspec.structs.replace(found.status(), state="running") if found.state.total else None)
            time.sleep(_POLL)
            found = found.again()
    sys.exit(_tell(found, time.monotonic() - started, as_json=as_json))


def _waits(found: Found) -> str:
    if found.folder.head() is None:
        return f"{found.folder.path.name} is not up"
    if found.cancelled_at is not None:
        return "cancelling"
    return found.state.note or _SAID.get(found.state.phase, "")


def _tell(found: Found, seconds: float, *, as_json: bool) -> int:
    """How it ended; returns the exit code."""
    state, submission = found.state, found.submission
    mine = submission.order is None
    shown = Ending(
        state.phase, exits.of_counts(state.ok, state.failed), batch=submission.id, rows=state.total, ok=state.ok,
        failed=state.failed, seconds=round(seconds, 3),
    )  # fmt: skip
    if state.phase == "completed":
        if mine:
            shown = msgspec.structs.replace(shown, state="finished", results=submission.output)
            _tell_results(Path(submission.output))
    else:
        code = exits.CANCELLED if state.phase == "cancelled" else exits.CANNOT
        shown = msgspec.structs.replace(shown, exit_code=code, error=state.note or state.phase)
        for line in _reasons(found):
            notes.print(line, markup=False, soft_wrap=True)
    if as_json:
        click.echo(msgspec.json.encode(shown).decode())
    elif state.phase == "completed":
        click.echo(submission.output if mine else submission.id)
    return shown.exit_code


def _tell_results(output: Path) -> None:
    results = Results(output)
    try:
        for line in ending(results.summary()):
            notes.print(line, markup=False, soft_wrap=True)
    finally:
        results.close()


def _reasons(found: Found) -> list[str]:
    state = found.state
    done = f"{state.ok + state.failed} of {state.total} rows are done"
    lines = [f"{found.submission.id} is {state.phase}{f': {state.note}' if state.note else ''}; {done}"]
    numbered = [error for error in state.errors if error.line is not None]
    lines += [f"  {_place(error)}: {error.message}" for error in numbered[:_SHOWN]]
    if len(numbered) > _SHOWN:
        lines.append(f"  ... and {len(numbered) - _SHOWN} more")
    return lines


def _place(error: LineError) -> str:
    return f"{error.file}, line {error.line}" if error.file else f"line {error.line}"


@click.command("list")
@click.option("--deployment", "name", help="Of this deployment only  [default: of all of yours]")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def listing(name: str | None, as_json: bool) -> None:
    """List submitted batches, newest first; those that were ordered over HTTP, too."""
    folders = [opened(name)[0]] if name else [place.folder_of(known) for known in place.names()]
    found = [one for folder in folders for one in submitted.of_deployment(folder)]
    found.sort(key=lambda one: one.submission.id, reverse=True)
    lines = [_line(one) for one in found]
    if as_json:
        click.echo(json_text(lines))
        return
    shown = table("batch", "deployment", "state", "submitted", "rows", "ok", "failed", "output")
    for one in lines:
        when = datetime.fromtimestamp(one.created).strftime("%Y-%m-%d %H:%M")
        counts = (str(one.rows), str(one.ok), str(one.failed))
        shown.add_row(one.batch, one.deployment, one.state, when, *counts, one.output or "(HTTP)")
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, 200)
    console.print(shown)


def _line(found: Found) -> Submitted:
    submission, state = found.submission, found.state
    output = submission.output if submission.order is None else ""
    return Submitted(
        submission.id, found.folder.path.name, found.word, submission.created, state.total, state.ok, state.failed,
        output, state.note,
    )  # fmt: skip


class Cancelled(msgspec.Struct, frozen=True):
    """What `batch cancel --json` tells. state: cancelling or cancelled; rows: all of them."""

    batch: str
    state: str
    rows: int
    ok: int
    failed: int


def cancelled(what: Path, name: str | None) -> Cancelled | None:
    """Cancel a submitted batch; returns how it stands. None: it was not submitted, or has ended: what runs now is
    another command's."""
    found = submitted.look_up(what, name)
    if found is None or (found.state.ended and what.name != found.submission.id):
        return None
    found = found.cancel()
    state = found.state
    return Cancelled(found.submission.id, found.word, state.total, state.ok, state.failed)


def waiting(what: Path, name: str | None) -> Found | None:
    """A submitted batch that has not ended, or was asked for by its id; None: the output itself tells."""
    found = submitted.look_up(what, name)
    if found is not None and (not found.state.ended or what.name == found.submission.id):
        return found
    return None
