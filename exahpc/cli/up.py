"""`exahpc up`: from a deployment file to a served model."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from pathlib import Path

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from exahpc.cli.common import first_key, json_text, notes, slurm_client
from exahpc.deployment.grid import Ledger
from exahpc.deployment.spec import Deployment, Pool
from exahpc.deployment.units import memory
from exahpc.errors import DeploymentError, Interrupted, SlurmError
from exahpc.launch import place, prepare, ready, room, start
from exahpc.slurm.api import SlurmClient
from exahpc.wire.folder import Folder


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--name", help="Name of the deployment, instead of the one in FILE.")
@click.option("--dry-run", is_flag=True, help="Check everything, print the command lines, start nothing.")
@click.option(
    "--wait/--no-wait", default=True, help="Wait until all replicas are ready (default), or come back at once."
)
@click.option("--timeout", type=click.FloatRange(1), help="Longest wait in seconds; the start itself goes on.")
@click.option("--strict", is_flag=True, help="Refuse pools that do not fit their accelerators; else: warn.")
@click.option(
    "--json", "as_json", is_flag=True, help="Name, folder, URL, certificate and API key as JSON; or the dry run."
)
def up(
    file: Path, name: str | None, dry_run: bool, wait: bool, timeout: float | None, strict: bool, as_json: bool
) -> None:
    """Start the deployment that FILE describes.

    Checks the file, the model and the programs first. Then submits the head and one job array a pool to Slurm, or
    starts them on this machine (launcher.kind = "local"). Ready means that every replica has answered a test
    generation.
    """
    deployment = prepare.read(file, name)
    path = place.home() / deployment.name
    if dry_run:
        _explain(deployment, path, as_json=as_json)
    prepare.check_stage(deployment)
    ledgers = prepare.check_model(deployment)
    room.check_arrays(deployment)
    _warn_of_memory(deployment, strict)
    if note := prepare.note_on_conversion(deployment):
        notes.print(note, markup=False)
    if dry_run:
        _show_memory(deployment, ledgers)
        return
    prepare.check_programs(deployment)
    client = slurm_client(deployment)
    with start.alone(path):
        start.refuse_twice(path, client)
        _advise(deployment, client)
        _show_memory(deployment, ledgers)
        folder, key = prepare.create(path, deployment)
        start.begin(folder, deployment, client, told=lambda what: notes.print(f"  {what}", markup=False))
    if deployment.launcher.commands == "watch":
        command = f"exahpc watch {shlex.quote(deployment.name)}"
        notes.print(f"  leave this running on a login node: {command}", markup=False, soft_wrap=True)
    if wait:
        _wait(folder, deployment, start.ended(folder, deployment, client, time.monotonic), timeout)
        endpoint = folder.endpoint()
        notes.print(f"[bold green]READY[/] {deployment.first_replicas} replicas of {deployment.served_name}")
        if endpoint is not None and not as_json:
            click.echo(endpoint.url)
    shown = shlex.quote(deployment.name)
    if as_json:
        found = folder.endpoint() if wait else None
        told = {"name": deployment.name, "folder": str(path), "url": found and found.url, "ca": found and found.ca}
        click.echo(json_text({**told, "key": first_key(folder)}))
    elif key is not None:
        notes.print(f"API key (shown once; later: exahpc key {shown}):", soft_wrap=True)
        click.echo(key)
    notes.print("Next:")
    for words in (f'chat {shown} "Hello"', f"url {shown}", f"status {shown}", f"down {shown}"):
        notes.print(f"  exahpc {words}", markup=False, soft_wrap=True)  # a command that wraps cannot be copied


def _explain(deployment: Deployment, path: Path, *, as_json: bool) -> None:
    """The command lines are worth seeing even where the model is not."""
    commands, files = start.plan(deployment, path)
    if as_json:
        click.echo(
            json_text({"commands": [list(argv) for argv in commands], "files": [str(file) for file in files]})
        )
        return
    for argv in commands:
        click.echo(shlex.join(argv))
    if deployment.launcher.kind == "slurm" and deployment.walltime.successors == "chain":
        tasks = sum(pool.tasks for pool in deployment.pool)
        notes.print(
            f"Then, for each of {tasks} tasks: {deployment.walltime.chain} more of its kind, one after another, "
            f"with --dependency=after:JOB+MINUTES?afterany:JOB (without a time limit: afterany:JOB)",
            soft_wrap=True,
        )
    notes.print("These files run:")
    for file in files:
        click.echo(str(file))


def _warn_of_memory(deployment: Deployment, strict: bool) -> None:
    found = room.shortages(deployment)
    if strict and found:
        raise DeploymentError("; ".join(found))
    for why in found:
        notes.print(f"Warning: {why}", markup=False, soft_wrap=True)


def _advise(deployment: Deployment, client: SlurmClient | None) -> None:
    if client is None or all(pool.nodes_per_replica == 1 for pool in deployment.pool):
        return
    try:
        leaves = client.topology()
    except SlurmError:
        return  # it is only advice
    for line in room.advice_on_switches(deployment, leaves):
        notes.print(line, markup=False, soft_wrap=True)


def _show_memory(deployment: Deployment, ledgers: dict[str, Ledger]) -> None:
    table = Table(
        "pool",
        "replicas",
        "grid",
        "nodes",
        "weights",
        "KV cache",
        "KV tokens",
        "a rank",
        box=None,
        pad_edge=False,
    )
    for pool in deployment.pool:
        ledger = ledgers[pool.name]
        table.add_row(
            pool.name,
            str(pool.replicas),
            _grid(pool, ledger),
            str(pool.tasks * pool.nodes_per_replica),
            memory(ledger.weights),
            memory(ledger.kv),
            str(ledger.kv_tokens),
            memory(ledger.rank_weights + ledger.rank_kv),
        )
    notes.print(table)


def _grid(pool: Pool, ledger: Ledger) -> str:
    stages = f" ({'+'.join(map(str, ledger.layers))} layers)" if pool.pipeline_parallel > 1 else ""
    return f"TP {pool.tensor_parallel} x PP {pool.pipeline_parallel}{stages}"


def _wait(folder: Folder, deployment: Deployment, ended: Callable[[], str | None], timeout: float | None) -> None:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    looks = ready.wait(
        folder,
        deployment.first_replicas,
        ended=ended,
        clock=time.monotonic,
        sleep=time.sleep,
        seconds=timeout,
    )
    shown = ""
    try:
        with Progress(*columns, console=notes, transient=True) as bar:
            task = bar.add_task("starting", total=None)
            for look in looks:
                bar.update(task, description=look.text, completed=look.done, total=look.total)
                for line in look.news:
                    notes.print(f"  {line}", markup=False, soft_wrap=True)
                if not notes.is_terminal and look.text != shown:  # a log file gets lines, not a bar
                    notes.print(f"  {look.text}", markup=False)
                shown = look.text
    except KeyboardInterrupt:
        raise Interrupted(
            f"stopped waiting; {deployment.name} goes on starting (exahpc status, exahpc down)"
        ) from None
