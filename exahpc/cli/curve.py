"""`exahpc curve`: what more concurrency brings, and what it costs."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from exahpc.cli import exits
from exahpc.cli.common import deployment_argument, first_key, live_endpoint, notes, opened
from exahpc.deployment.units import memory
from exahpc.errors import ExahpcError
from exahpc.lab import report
from exahpc.lab.curve import Curve, Measure
from exahpc.lab.level import Level
from exahpc.lab.load import Shape

_MOST = 1024
"""Requests at once: beyond that, this process would measure itself."""


def _rising(ctx: click.Context, param: click.Parameter, value: str | None) -> list[int] | None:
    """Callback of --concurrency."""
    if value is None:
        return None
    try:
        found = [int(part) for part in value.split(",")]
    except ValueError:
        found = []
    if not found or found[0] < 1 or any(b <= a for a, b in pairwise(found)):
        raise click.BadParameter(f"{value!r}: give rising whole numbers from 1 up, for example 1,2,4,8")
    if found[-1] > _MOST:
        raise click.BadParameter(
            f"{found[-1]} requests at once are more than one client can measure: give levels up to {_MOST}"
        )
    return found


def powers(sequences: int) -> list[int]:
    """1, 2, 4 ... until twice of what runs at once has been tried: past the knee, wherever it is."""
    found = [1]
    while found[-1] < min(2 * sequences, _MOST):
        found.append(found[-1] * 2)
    return found


@click.command()
@deployment_argument()
@click.option(
    "--concurrency",
    callback=_rising,
    help="Requests at once, level by level: 1,2,4,8  [default: powers of two up to twice what runs at once]",
)
@click.option(
    "--seconds", type=click.FloatRange(1), default=20.0, show_default=True, help="Measured at each level."
)
@click.option(
    "--warm", type=click.FloatRange(0), default=5.0, show_default=True, help="Seconds before that, at least."
)
@click.option("--prompt", type=click.IntRange(1), default=128, show_default=True, help="Tokens of each prompt.")
@click.option("--new", type=click.IntRange(1), default=64, show_default=True, help="Mean tokens of each answer.")
@click.option("--json", "as_json", is_flag=True, help="All figures as JSON, as in curve.json.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for curve.json, .csv, .png and .svg  [default: curve-NAME]",
)
def curve(
    name: str,
    concurrency: list[int] | None,
    seconds: float,
    warm: float,
    prompt: int,
    new: int,
    as_json: bool,
    output: Path | None,
) -> None:
    """Measure NAME under more and more requests at once.

    Writes throughput, latency and memory of each level, and marks the knee. The load goes through the endpoint,
    like that of any client: best when nobody else uses it. After Ctrl-C the levels that were finished are written.
    """
    folder, deployment = opened(name)
    measure = Measure(folder, deployment, live_endpoint(folder), first_key(folder))
    longest, context = prompt + new + new // 2, deployment.model.context
    if longest > context:
        raise click.UsageError(
            f"--prompt and 1.5 x --new are {longest} tokens, more than the context of {context}"
        )
    levels = concurrency or powers(measure.sequences)
    target = output or Path(f"curve-{folder.path.name}")
    report.make(target)
    notes.print(f"{len(levels)} levels of {warm + seconds:g} s: {', '.join(map(str, levels))} requests at once")
    shape, done = Shape(prompt, new), list[Level]()
    ending: KeyboardInterrupt | ExahpcError | None = None
    try:
        for level in measure.levels(levels, shape, seconds=seconds, warm=warm):
            done.append(level)
            _tell(level)
    except (KeyboardInterrupt, ExahpcError) as error:
        if not done:
            raise
        ending = error
    cut = f"it was interrupted: {len(done)} of {len(levels)} levels were measured"
    found = measure.curve(done, shape, [cut] if ending else [])
    if not as_json:
        Console(highlight=False).print(_table(found))
    for line in found.notes:
        notes.print(line, markup=False)
    made = report.write(found, target)
    try:
        pictures = [target / "curve.png", target / "curve.svg"]
        report.plot(found, pictures)
    except ExahpcError as error:
        notes.print(str(error), markup=False)
    else:
        made += pictures
    click.echo(made[0].read_text() if as_json else "\n".join(map(str, made)), nl=not as_json)
    if isinstance(ending, ExahpcError):
        raise ending
    if ending is not None:
        sys.exit(exits.INTERRUPTED)


def _tell(level: Level) -> None:
    notes.print(f"{level.concurrency} at once: {level.tokens_per_second:.1f} tokens/s", markup=False)


def _table(found: Curve) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("at once", "tokens/s", "first P50", "P99", "next P50", "P99", "KV", "memory", ""):
        table.add_column(title, justify="right" if title else "left", no_wrap=True)
    for level in found.levels:
        cells = report.row(found, level)
        times = [(s.count, t) for s in (level.first_token, level.between) for t in (s.p50, s.p99)]
        table.add_row(
            str(level.concurrency),
            f"{level.tokens_per_second:.1f}",
            *(f"{1e3 * t:,.0f}" if count else "-" for count, t in times),
            "-" if cells["kv_share"] is None else f"{cells['kv_share']:.0%}",
            "-" if level.memory is None else memory(level.memory),
            "[red]<- knee[/red]" if cells["knee"] else f"{level.refused} refused" if level.refused else "",
        )
    table.caption = "first, next: ms to the first token, and from one piece of text to the next"
    if found.knee is None and len(found.levels) > 2:
        table.caption += "; no knee yet: throughput still grows with each level"
    return table
