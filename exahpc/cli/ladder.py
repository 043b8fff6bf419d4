"""`exahpc ladder`: what more nodes bring."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Literal

import click
from rich.console import Console
from rich.table import Table

from exahpc.cli.common import json_text, notes, slurm_client
from exahpc.cli.load_options import load_of, load_options, trial_options
from exahpc.cli.signals import terminable
from exahpc.deployment import render
from exahpc.errors import ExahpcError
from exahpc.lab import report as files
from exahpc.lab.bench.lengths import Lengths
from exahpc.lab.bench.wish import Slo
from exahpc.lab.ladder import climb, report
from exahpc.lab.ladder.values import Ladder, Question
from exahpc.lab.resumed import resumed


def _rising(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    """Callback of --nodes."""
    try:
        found = tuple(int(part) for part in value.split(","))
    except ValueError:
        found = ()
    if not found or found[0] < 1 or any(b <= a for a, b in pairwise(found)):
        raise click.BadParameter(f"{value!r}: give rising whole numbers from 1 up, for example 1,2,4")
    return found


@click.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--nodes", default="1,2,4", show_default=True, callback=_rising, help="Nodes of each step.")
@click.option("--pool", help="Pool of FILE to climb with, where there are several.")
@load_options(" of each node")
@trial_options("step")
@click.option("--simulate", is_flag=True, help="By a virtual clock with emulated replicas: nothing is started.")
@click.option(
    "--latency",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="With --simulate: curve.json of `exahpc curve`, replicas are as fast as that.",
)
@click.option("--json", "as_json", is_flag=True, help="All figures as JSON.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for ladder.json, .h5, .png and .svg  [default: ladder-NAME]",
)
def ladder(
    file: Path,
    nodes: tuple[int, ...],
    pool: str | None,
    rate: float | None,
    concurrency: int | None,
    arrivals: Literal["poisson", "fixed"],
    seconds: float,
    ramp: float,
    drain: float,
    prompt: Lengths,
    new: Lengths,
    slo: Slo,
    seed: int,
    processes: int | None,
    timeout: float | None,
    simulate: bool,
    latency: Path | None,
    as_json: bool,
    output: Path | None,
) -> None:
    """Serve FILE on 1, 2, 4 ... nodes, each with the same load for each node, and tell how throughput grows.

    Each step is a deployment of its own: started, loaded, and taken down again. A law is fitted to the steps: it
    tells where efficiency falls below 90 %, with error bars, and what further nodes would bring, marked as
    extrapolated. The same command goes on where an earlier one was cut off.
    """
    if latency is not None and not simulate:
        raise click.UsageError("--latency belongs to --simulate")
    shapes = {count: climb.shaped(file, count, pool) for count in nodes}
    first = shapes[nodes[0]]
    question = Question(
        toml=render.toml(first),
        nodes=nodes,
        load=load_of(rate, concurrency, arrivals),
        prompt=prompt,
        new=new,
        ramp=ramp,
        seconds=seconds,
        drain=drain,
        slo=slo,
        seed=seed,
        simulated=simulate,
        latency=str(latency.absolute()) if latency else "",
    )
    target = output or Path(f"ladder-{first.name.rpartition('-ladder-')[0]}")
    files.make(target)
    found = resumed(target / report.FILE, Ladder, question) or climb.begun(question)
    if found.steps:
        notes.print(f"going on after {len(found.steps)} of {len(nodes)} steps", markup=False)
    client = None
    if not simulate and not found.complete:
        climb.check(list(shapes.values()))
        client = slurm_client(first)

    def told(line: str) -> None:
        notes.print(f"  {line}", markup=False, soft_wrap=True)

    with terminable():  # what stands is taken down, also at a walltime
        for count in nodes[len(found.steps) :]:
            notes.print(f"{count} nodes", markup=False)
            if simulate:
                one = climb.simulated_step(question, shapes[count], count)
            else:
                one = climb.step(
                    question, shapes[count], count, client, told, processes=processes or 0, timeout=timeout
                )
            found = found.with_step(one)
            report.write(found, target)
    if as_json:
        click.echo(json_text(found))
    else:
        _show(found)
    _finish(found, target)


def _finish(found: Ladder, target: Path) -> None:
    for path in report.write(found, target):
        notes.print(str(path), markup=False, soft_wrap=True)
    try:
        pictures = [target / "ladder.png", target / "ladder.svg"]
        report.plot(found, pictures)
    except ExahpcError as error:
        notes.print(str(error), markup=False)
    else:
        for path in pictures:
            notes.print(str(path), markup=False, soft_wrap=True)
    for step in found.steps:
        for doubt in step.doubts:
            notes.print(
                f"[yellow]{step.nodes} nodes: the client may be the bottleneck:[/] {doubt}", soft_wrap=True
            )


def _show(found: Ladder) -> None:
    console = Console(highlight=False)
    if found.emulated:
        console.print(f"EMULATED: {found.emulated}", markup=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="dim")
    titles = ("nodes", "tokens/s", "+-", "efficiency", "first P50", "P99", "whole P50", "bad")
    for title in (*titles, *(("goodput/s",) if found.question.slo else ())):
        table.add_column(title, justify="right", no_wrap=True)
    for step, share in zip(found.steps, found.efficiency, strict=True):
        table.add_row(
            str(step.nodes),
            f"{step.tokens_per_second:,.1f}",
            f"{step.error:,.1f}",
            f"{100 * share.value:.0f} +- {100 * share.error:.0f} %",
            f"{1e3 * step.ttft.p50:,.0f}",
            f"{1e3 * step.ttft.p99:,.0f}",
            f"{1e3 * step.e2e.p50:,.0f}",
            f"{step.bad:,}/{step.requests:,}",
            *((f"{step.goodput:,.2f}",) if step.goodput is not None else ()),
        )
    table.caption = f"{found.question.load} of each node; first token and whole answer in ms"
    console.print(table)
    for line in report.words(found):
        console.print(line, markup=False, soft_wrap=True)
