"""`exahpc batch`: files of requests, run to their end whatever dies meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import click
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from exahpc.batch import export as exporting
from exahpc.batch import run as running
from exahpc.batch.inputs.options import Inputs
from exahpc.batch.plan import Parts
from exahpc.batch.results import Summary
from exahpc.cli.common import json_text, notes, opened
from exahpc.cli.inputs import takes_inputs
from exahpc.errors import BatchError, LinkError
from exahpc.wire import messages as m
from exahpc.wire.folder import Folder
from exahpc.wire.link import ask

_OUTPUT = click.Path(dir_okay=False, path_type=Path)


@click.group()
def batch() -> None:
    """Run files of requests (OpenAI batch lines), exactly once a line, through any crash."""


@batch.command()
@takes_inputs
@click.option("--deployment", "name", required=True, help="The deployment that runs it.")
@click.option("-o", "--output", required=True, type=_OUTPUT, help="Results file (HDF5) to make.")
@click.option("--skip-invalid", is_flag=True, help="Bad rows become error records instead of stopping the batch.")
def run(inputs: Inputs, name: str, output: Path, skip_invalid: bool) -> None:
    """Run the requests of INPUT and write all answers, in input order, to OUTPUT.

    All lines are checked first. After any interruption the same command goes on with the missing rows. INPUT and
    OUTPUT must be on a file system that the nodes see.

    Exit code 0 when every row has its answer, 3 when some failed, 4 when all failed.
    """
    folder, deployment = opened(name)
    with _bar("checking the input") as told:
        prepared = running.prepare(
            inputs, output, served_name=deployment.served_name, skip_invalid=skip_invalid, progress=told
        )
    try:
        if prepared.resumed:
            notes.print(f"going on with {prepared.plan.batch}")
        with _bar(f"{prepared.plan.rows} rows") as moved:

            def report(status: m.BatchStatus | None) -> None:
                if status is not None:
                    moved(status.ok + status.failed, status.total)

            summary = running.drive(prepared, lambda question: _asked(folder, question), report)
    except KeyboardInterrupt:
        notes.print(
            "stopped watching; the deployment goes on with the rows. The same command collects them; "
            f"exahpc batch cancel {output} --deployment {name} stops them",
            soft_wrap=True,
        )
        raise
    finally:
        prepared.release()
    _tell(summary)
    click.echo(str(summary.path))
    sys.exit(summary.exit_code)


@batch.command()
@click.argument("results", type=click.Path(exists=True, path_type=Path))
@click.option("-o", "--output", default="-", show_default=True, help='File to write; "-" is standard output.')
def export(results: Path, output: str) -> None:
    """Write RESULTS as JSON lines in OpenAI's batch output form, in input order.

    RESULTS is a results file, or the .parts folder of an unfinished batch: then what is done so far.
    """
    target: Path | BinaryIO = sys.stdout.buffer if output == "-" else Path(output)
    with _bar("writing") as told:
        summary = exporting.export(results, target, told)
    _tell(summary)


@batch.command()
@click.option("--deployment", "name", required=True, help="The deployment that is asked.")
@click.argument("output", required=False, type=_OUTPUT)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def status(name: str, output: Path | None, as_json: bool) -> None:
    """Show the batches of a deployment, or only the one that makes OUTPUT."""
    folder, _ = opened(name)
    if output is not None:
        found = [_state(_asked(folder, m.BatchQuery(_batch_of(output))))]
    else:
        reply = _ask(folder, m.StatusQuery())
        found = reply.batches if isinstance(reply, m.StatusReply) else []
    if as_json:
        click.echo(json_text(found))
        return
    for one in found:
        done = f"{one.ok + one.failed}/{one.total} rows, {one.failed} failed"
        click.echo(f"{one.batch}\t{one.state}\t{done}\t{one.folder.removesuffix('.parts')}\t{one.note}".rstrip())


@batch.command()
@click.argument("output", type=_OUTPUT)
@click.option("--deployment", "name", required=True, help="The deployment that runs it.")
def cancel(output: Path, name: str) -> None:
    """Stop the batch that makes OUTPUT; what is done stays, and `batch run` can go on with it."""
    folder, _ = opened(name)
    found = _state(_asked(folder, m.BatchCancel(_batch_of(output))))
    click.echo(f"{found.batch} {found.state}, {found.ok + found.failed} of {found.total} rows are done")


def _batch_of(output: Path) -> str:
    plan = Parts.of(output).plan()
    if plan is None:
        raise BatchError(f"no batch was begun for {output}: start it with `exahpc batch run INPUT -o {output}`")
    return plan.batch


def _ask(folder: Folder, question: m.Message) -> m.StatusReply | m.BatchState | m.Accepted | m.Refused:
    record = folder.head()
    if record is None:
        raise LinkError(f"{folder.path.name} has no head: is it up? (`exahpc status {folder.path.name}`)")
    answer: m.StatusReply | m.BatchState | m.Accepted | m.Refused = ask(
        folder.fleet_key(), record.address, question, m.BrokerToClient
    )
    return answer


def _asked(folder: Folder, question: m.Message) -> m.BatchState | m.Refused:
    answer = _ask(folder, question)
    if not isinstance(answer, m.BatchState | m.Refused):
        raise LinkError(
            f"the head answered {type(answer).__name__} to {type(question).__name__}: versions differ?"
        )
    return answer


def _state(answer: m.BatchState | m.Refused) -> m.BatchStatus:
    if isinstance(answer, m.Refused):
        raise BatchError(answer.reason)
    return answer.status


def _tell(summary: Summary) -> None:
    notes.print(f"{summary.ok} of {summary.total} rows answered, {summary.failed} failed")
    if summary.commonest_error:
        notes.print(f"commonest error: {summary.commonest_error}", markup=False)


@contextmanager
def _bar(text: str) -> Iterator[Callable[[int, int], None]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=notes, transient=True) as shown:
        task = shown.add_task(text, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)
