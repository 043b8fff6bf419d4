"""`exahpc history`: what the deployment measured, from the files in its folder; no broker needs to run."""

from __future__ import annotations

import csv
import json
import math
import re
import sys
import time
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from exahpc.cli.common import deployment_argument, opened
from exahpc.errors import DeploymentError
from exahpc.telemetry import store
from exahpc.telemetry.courses import TIERS, columns

_SPAN = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_SHOWN = (
    "ready", "running", "requests", "failed", "tokens", "kv", "utilization", "ttft_p50", "ttft_p99", "tbt_p50",
)  # fmt: skip
_SHOWN_OF_CLIENTS = ("running", "waiting", "ok", "too_many", "failed", "ttft_p50", "ttft_p99", "e2e_p99")


def _span(ctx: click.Context, param: click.Parameter, value: str) -> float:
    found = _SPAN.fullmatch(value.strip())
    if not found:
        raise click.BadParameter('write a time like "90s", "30m", "6h" or "7d"')
    return float(found[1]) * _UNITS[found[2]]


@click.command()
@deployment_argument()
@click.argument("column", nargs=-1)
@click.option(
    "--of", "group", default="fleet", show_default=True, help="fleet, clients, pool/POOL, switch/SWITCH."
)
@click.option("--last", default="1h", show_default=True, callback=_span, help="How far back: 90s, 30m, 6h, 7d.")
@click.option(
    "--step",
    type=click.Choice([tier.name for tier in TIERS]),
    help="Default: the finest that reaches back so far.",
)
@click.option("--csv", "as_csv", is_flag=True, help="All columns (or those named) as CSV.")
@click.option("--json", "as_json", is_flag=True, help="The same as JSON.")
@click.option("--list", "only_list", is_flag=True, help="Print the groups and their columns only.")
def history(
    name: str,
    column: tuple[str, ...],
    group: str,
    last: float,
    step: str | None,
    as_csv: bool,
    as_json: bool,
    only_list: bool,
) -> None:
    """Show what NAME measured: each COLUMN, row by row.

    Gauges are means over a row's time, counts are what was added in it, percentiles are seconds. Rows of ten
    seconds are kept for six hours, of a minute for a week, of ten minutes for three months.
    """
    folder, _ = opened(name)
    place = folder.path / "history"
    known = store.groups(place)
    if only_list:
        for one in known:
            click.echo(f"{one}\t{' '.join(columns(one))}")
        return
    if group not in known:
        raise DeploymentError(f"{name} has no history of {group!r}; there is: {', '.join(known) or 'none yet'}")
    for unknown in set(column) - set(columns(group)):
        raise DeploymentError(f"{group} has no column {unknown!r}; there are: {', '.join(columns(group))}")
    now = time.time()
    seconds = next((tier.step for tier in TIERS if tier.name == step), 0)
    rows = store.read(place, group, now - last, now, seconds).rows
    names = column or columns(group)
    if as_json:
        click.echo(json.dumps([_plain(row, names) for row in rows]))
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(("time", "seconds", *names))
        writer.writerows(["" if cell is None else cell for cell in _plain(row, names).values()] for row in rows)
    else:
        _print(rows, column or (_SHOWN_OF_CLIENTS if group == "clients" else _SHOWN))


def _plain(row: Any, names: tuple[str, ...]) -> dict[str, float | int | None]:
    """Unknown cells are None."""
    cells = {name: None if math.isnan(row[name]) else float(f"{row[name]:.6g}") for name in names}
    return {"time": int(row["time"]), "seconds": float(f"{row['seconds']:.6g}"), **cells}


def _print(rows: Any, names: tuple[str, ...]) -> None:
    table = Table("time", *names, box=None, header_style="bold")
    for row in rows:
        cells = ("" if math.isnan(row[name]) else f"{row[name]:.4g}" for name in names)
        table.add_row(time.strftime("%m-%d %H:%M:%S", time.localtime(int(row["time"]))), *cells)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 20 + 14 * len(names)
    console.print(table)
