"""`exahpc batch`: files of requests, run to their end whatever dies meanwhile."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import click
import msgspec
from rich.console import Console

from exahpc.batch import export as exporting
from exahpc.batch import run as running
from exahpc.batch.failures import failures
from exahpc.batch.inputs.options import Inputs
from exahpc.batch.retrying import Retrying
from exahpc.batch.run import Prepared
from exahpc.batch.tally import Summary
from exahpc.cli import exits, submitted
from exahpc.cli.batch_view import Ending, bar, ending, show, show_failures
from exahpc.cli.common import json_text, notes, opened
from exahpc.cli.compact import compact
from exahpc.cli.hire import takes_nodes
from exahpc.cli.inputs import check, takes_inputs
from exahpc.cli.running import Runner, run_to_the_end, tell, tell_end
from exahpc.errors import BatchError
from exahpc.lab.hire import Hire
from exahpc.launch import standing
from exahpc.launch.asking import about_batch, ask_broker, state_of
from exahpc.wire import messages as m

_OUTPUT = click.Path(dir_okay=False, path_type=Path)


@click.group()
def batch() -> None:
    """Run files of requests (OpenAI batch lines), exactly once a line, through any crash."""


submitted.add_to(batch)
batch.add_command(compact)
batch.add_command(check)


@batch.command(epilog=exits.EPILOG)
@takes_inputs
@click.option("--deployment", "name", help="The deployment that runs it.")
@click.option("-o", "--output", required=True, type=_OUTPUT, help="Results file (HDF5) to make.")
@click.option("--skip-invalid", is_flag=True, help="Bad rows become error records instead of stopping the batch.")
@click.option("--keep-parts", is_flag=True, help="Keep the .parts folder when all is in OUTPUT.")
@takes_nodes
@click.option("--json", "as_json", is_flag=True, help="The last line of standard output tells the end as JSON.")
def run(
    inputs: Inputs,
    name: str | None,
    output: Path,
    skip_invalid: bool,
    keep_parts: bool,
    hire: Hire,
    keep: bool,
    as_json: bool,
) -> None:
    """Run the requests of INPUT and write all answers, in input order, to OUTPUT.

    With --deployment they run beside its other requests. With --model a deployment of their own is brought up, on
    --nodes nodes, and taken down at the end, whatever the end is. Nodes that the last rows do not need are given
    back before.

    All rows are checked before any node is asked for. After any interruption the same command goes on with the
    missing rows. INPUT and OUTPUT must be on a file system that the nodes see.
    """

    def begin(runner: Runner) -> Prepared:
        with bar(notes, "checking the input") as progress:
            return running.prepare(
                inputs,
                output,
                served_name=runner.deployment.served_name,
                skip_invalid=skip_invalid,
                keep_parts=keep_parts,
                progress=progress,
            )

    sys.exit(run_to_the_end(lambda: Runner(output, name, hire, keep), begin, as_json=as_json))


@batch.command("retry-failed", epilog=exits.EPILOG)
@click.argument("results", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--deployment", "name", help="The deployment that runs them.")
@takes_nodes
@click.option("--json", "as_json", is_flag=True, help="The last line of standard output tells the end as JSON.")
def retry_failed(results: Path, name: str | None, hire: Hire, keep: bool, as_json: bool) -> None:
    """Run the failed rows of RESULTS again, and put their answers in the place of their errors.

    Rows that were bad in the input are left out: they would only fail again. What `batch run` says about
    interruptions holds here, too. Neither the input nor the .parts folder is needed.
    """
    retrying = Retrying(results)
    if not retrying.retry.rows:
        retrying.drop()
        tell("no failed row can be run again")
        sys.exit(tell_end(retrying.before, Ending("finished", 0, batch=retrying.retry.batch), as_json=as_json))

    def begin(runner: Runner) -> Prepared:
        tell(f"{len(retrying.retry.rows)} rows are run again")
        return running.prepare(
            retrying.requests, retrying.answers, served_name=runner.deployment.served_name, skip_invalid=True
        )

    def after(summary: Summary) -> Summary:
        tell(f"of them {summary.ok} are answered now")
        with bar(notes, "writing results") as progress:
            return retrying.put_in(progress)

    sys.exit(
        run_to_the_end(lambda: Runner(retrying.answers, name, hire, keep), begin, as_json=as_json, after=after)
    )


@batch.command()
@click.argument("results", type=click.Path(exists=True, path_type=Path))
@click.option("-o", "--output", default="-", show_default=True, help='File to write; "-" is standard output.')
@click.option("--form", type=click.Choice(exporting.FORMS), help="[default: by the name of the file]")
def export(results: Path, output: str, form: exporting.Form | None) -> None:
    """Write RESULTS in another form, in input order: OpenAI's batch output lines, texts only, CSV or Parquet.

    RESULTS is a results file, or the .parts folder of an unfinished batch: then what is done so far.
    """
    target: Path | BinaryIO = sys.stdout.buffer if output == "-" else Path(output)
    form = form or (exporting.form_of(target) if isinstance(target, Path) else "openai")
    with bar(notes, "writing") as told:
        summary = exporting.export(results, target, told, form)
    for line in ending(summary):
        tell(line)


@batch.command()
@click.argument("output", metavar="[OUTPUT|ID]", required=False, type=_OUTPUT)
@click.option("--deployment", "name", help="The deployment that is asked  [default: the one that ran OUTPUT last]")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def status(output: Path | None, name: str | None, as_json: bool) -> None:
    """Show the batch that makes OUTPUT (or was submitted as ID), or all batches that a deployment runs.

    Of a batch that no deployment knows any more, what is on disk.
    """
    if output is not None:
        waiting = submitted.waiting(output, name)
        found = [waiting.status() if waiting else standing.of_output(output, opened(name)[0] if name else None)]
    elif name is not None:
        reply = ask_broker(opened(name)[0], m.StatusQuery())
        found = reply.batches if isinstance(reply, m.StatusReply) else []
    else:
        raise click.UsageError("which batch? Name its OUTPUT, or a --deployment for all of its batches")
    if as_json:
        click.echo(json_text(found))
    else:
        show(Console(highlight=False), found)


@batch.command()
@click.argument("output", metavar="OUTPUT|ID", type=_OUTPUT)
@click.option("--deployment", "name", help="The deployment that runs it  [default: the one that ran it last]")
@click.option("--json", "as_json", is_flag=True, help="How it stands, as JSON.")
def cancel(output: Path, name: str | None, as_json: bool) -> None:
    """Stop the batch that makes OUTPUT, or was submitted as ID; what is done stays, and `batch run` goes on with
    it."""
    told = submitted.cancelled(output, name)
    if told is None:
        plan, folder = standing.known(output)
        folder = opened(name)[0] if name else folder
        if folder is None:
            raise BatchError(
                f"nobody runs {output} as far as is known here: name the deployment with --deployment"
            )
        found = state_of(about_batch(folder, m.BatchCancel(plan.batch)))
        told = submitted.Cancelled(found.batch, found.state, found.total, found.ok, found.failed)
    if as_json:
        click.echo(json_text(told))
    else:
        click.echo(f"{told.batch} {told.state}, {told.ok + told.failed} of {told.rows} rows are done")


@batch.command()
@click.argument("results", type=click.Path(exists=True, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object a failed row.")
@click.option("--limit", type=click.IntRange(1), help="Most rows to list  [default: 20, or all with --json]")
def errors(results: Path, as_json: bool, limit: int | None) -> None:
    """List the failed rows of RESULTS, the commonest reasons first.

    RESULTS is a results file, or the .parts folder of an unfinished batch: then what failed so far.
    """
    found = failures(results)
    if as_json:
        for one in islice(found, limit):
            click.echo(msgspec.json.encode(one).decode())
    else:
        show_failures(Console(highlight=False), found, limit or 20)
