"""`exahpc sweep`: which shape of a node serves best."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from exahpc.cli.common import json_text, notes, slurm_client
from exahpc.cli.load_options import time_options, trial_options
from exahpc.cli.signals import terminable
from exahpc.deployment import render
from exahpc.errors import DeploymentError
from exahpc.lab import report as files
from exahpc.lab.bench.lengths import Lengths
from exahpc.lab.bench.wish import Load, Slo
from exahpc.lab.resumed import resumed
from exahpc.lab.sweep import run, shapes
from exahpc.lab.sweep.shapes import Shape
from exahpc.lab.sweep.trials import Question, Sweep
from exahpc.launch import prepare


def _shapes(ctx: click.Context, param: click.Parameter, value: str | None) -> list[Shape] | None:
    """Callback of --shapes."""
    try:
        return shapes.parsed(value) if value is not None else None
    except DeploymentError as error:
        raise click.BadParameter(str(error)) from None


def _numbers(ctx: click.Context, param: click.Parameter, value: str | None) -> list[float]:
    """Callback of --rate and --concurrency."""
    try:
        found = [float(part) for part in value.split(",")] if value is not None else []
    except ValueError:
        found = [0.0]
    whole = param.name == "concurrency"
    if any(not 0 < one < 1e9 or (whole and one != int(one)) for one in found):
        raise click.BadParameter(f"{value!r}: give {'whole ' * whole}numbers above 0, for example 8,32")
    return found


@click.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--shapes",
    "wanted",
    callback=_shapes,
    help="TPxPPxREPLICAS of a node: 1x1x8,2x1x4  [default: all that use as many ranks of a node as FILE]",
)
@click.option("--nodes", type=click.IntRange(1), default=1, show_default=True, help="That each shape gets.")
@click.option("--pool", help="Pool of FILE, where there are several.")
@click.option("--concurrency", callback=_numbers, help="Closed loop: clients, of each measurement: 8,32.")
@click.option("--rate", callback=_numbers, help="Open loop: requests a second, of each measurement: 2,8.")
@time_options()
@trial_options("shape")
@click.option("--json", "as_json", is_flag=True, help="All figures as JSON.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for sweep.json  [default: sweep-NAME]",
)
def sweep(
    file: Path,
    wanted: list[Shape] | None,
    nodes: int,
    pool: str | None,
    concurrency: list[float],
    rate: list[float],
    seconds: float,
    ramp: float,
    drain: float,
    prompt: Lengths,
    new: Lengths,
    slo: Slo,
    seed: int,
    processes: int | None,
    timeout: float | None,
    as_json: bool,
    output: Path | None,
) -> None:
    """Serve FILE in several shapes, TP x PP x replicas of a node, under the same loads, and tell which is best.

    Best is the highest goodput with --slo, else the most tokens a second. Every measurement is kept at once: after
    a walltime or Ctrl-C the same command goes on with those that are missing.
    """
    if not concurrency and not rate:
        raise click.UsageError("how much load? Give --rate (open loop) or --concurrency (closed loop)")
    loads = (*(Load(concurrency=int(one)) for one in concurrency), *(Load(rate=one) for one in rate))
    deployment = run.base(file, nodes, pool)
    prepare.check_stage(deployment)
    prepare.check_programs(deployment)
    if wanted is None:
        wanted = run.fitting(deployment, _tell)
        if not wanted:
            raise DeploymentError(
                f"no shape of {run.ranks(deployment)} ranks a node fits this model: give --shapes"
            )
    question = Question(
        render.toml(deployment), nodes, tuple(wanted), loads, prompt, new, ramp, seconds, drain, slo, seed
    )
    target = output or Path(f"sweep-{deployment.name.removesuffix('-sweep')}")
    files.make(target)
    found = resumed(target / run.FILE, Sweep, question) or run.begun(question)
    missing = [shape for shape in wanted if not found.done(shape)]
    notes.print(
        f"{len(missing)} of {len(wanted)} shapes are to be measured under {', '.join(map(str, loads))}",
        markup=False,
        soft_wrap=True,
    )
    path = run.save(found, target)
    if missing:
        client = slurm_client(deployment)
        with terminable():  # what stands is taken down, also at a walltime
            for now in run.trials(found, deployment, client, _tell, processes=processes or 0, timeout=timeout):
                found = now
                run.save(found, target)
    if as_json:
        click.echo(json_text(found))
    else:
        _show(found)
    notes.print(str(path), markup=False, soft_wrap=True)


def _tell(line: str) -> None:
    notes.print(f"  {line}", markup=False, soft_wrap=True)


def _show(found: Sweep) -> None:
    console = Console(highlight=False)
    if found.emulated:
        console.print(f"EMULATED: {found.emulated}", markup=False)
    table = Table(box=None, pad_edge=False, header_style="dim")
    slo = found.question.slo
    table.add_column("TPxPPxR", no_wrap=True)
    for title in ("load", "tokens/s", "first P50", "P99", "next P50", "bad", *(("goodput/s",) if slo else ())):
        table.add_column(title, justify="right", no_wrap=True)
    for trial in found.trials:
        for load, step in zip(found.question.loads, trial.steps, strict=False):
            table.add_row(
                str(trial.shape),
                str(load),
                f"{step.tokens_per_second:,.1f}",
                *(f"{1e3 * time:,.0f}" for time in (step.ttft.p50, step.ttft.p99, step.tbt.p50)),
                f"{step.bad:,}/{step.requests:,}",
                *(() if step.goodput is None else (f"{step.goodput:,.2f}",)),
            )
    console.print(table)
    for trial in found.trials:
        if trial.reason:
            console.print(f"{trial.shape}: {trial.reason}", markup=False, soft_wrap=True)
        for step in trial.steps:
            for doubt in step.doubts:
                notes.print(f"{trial.shape}: the client may be the bottleneck: {doubt}", soft_wrap=True)
    choice = found.choice
    if choice is None:
        return
    unit = f"answers/s with {slo}" if slo else "tokens/s"
    near = f"; not told apart from it: {', '.join(map(str, choice.rivals))}" if choice.rivals else ""
    console.print(
        f"recommended: tensor_parallel = {choice.shape.tensor}, pipeline_parallel = {choice.shape.pipeline}, "
        f"replicas_per_task = {choice.shape.replicas} ({choice.value:,.1f} +- {choice.error:,.1f} {unit}, "
        f"{choice.load}){near}",
        markup=False,
        soft_wrap=True,
    )
