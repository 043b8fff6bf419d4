"""What `exahpc bench` shows."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from exahpc.lab.bench.figures import Result, Spread


def show(found: Result) -> None:
    """Tables on standard output."""
    console = Console(highlight=False)
    if found.emulated:
        console.print("[bold]EMULATED engine: these are no speeds of a model[/]")
    console.print(_rates(found))
    console.print(
        f"{found.requests:,} requests: {found.ok:,} ok, {found.refused:,} refused, {found.failed:,} failed, "
        f"{found.open:,} without an end; prompts of {found.prompt:,.0f} tokens, answers of {found.new:,.0f}",
        soft_wrap=True,
    )
    console.print(_times(found))
    if found.goodput is not None and found.good is not None:
        console.print(f"goodput: {found.goodput:.2f} answers/s ({found.good:.1%} of all) with {found.wish.slo}")
    for error, count in found.errors.items():
        console.print(f"{count} x {error}", markup=False, soft_wrap=True)
    client = found.client
    console.print(
        f"client: {client.processes} process{'es' * (client.processes > 1)}, busy {client.busy:.0%}, late by "
        f"{1e3 * client.late:.1f} ms (P99); its own ceiling is at about {client.most_requests:,.0f} requests/s, "
        f"{client.most_tokens:,.0f} tokens/s of this kind",
        soft_wrap=True,
    )


def _rates(found: Result) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in (str(found.wish.load), "seconds", "requests/s", "tokens/s"):
        table.add_column(title, justify="left" if title == str(found.wish.load) else "right", no_wrap=True)
    drained = found.drained
    sure = f"{found.tokens_per_second:,.1f} +- {found.error:,.1f}"
    table.add_row("after the ramp-up", f"{found.seconds:g}", f"{found.requests_per_second:,.2f}", sure)
    table.add_row(
        "with the drain",
        f"{drained.seconds:,.1f}",
        f"{drained.requests_per_second:,.2f}",
        f"{drained.tokens_per_second:,.1f}",
    )
    return table


def _times(found: Result) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("ms", "mean", "P50", "P90", "P95", "P99", "most", "count"):
        table.add_column(title, justify="left" if title == "ms" else "right", no_wrap=True)
    names = {
        "first token": found.ttft,
        "between tokens": found.tbt,
        "between pieces": found.gap,
        "whole answer": found.e2e,
    }
    for name, spread in names.items():
        if spread.count:
            table.add_row(name, *_cells(spread))
    return table


def _cells(spread: Spread) -> list[str]:
    times = (spread.mean, spread.p50, spread.p90, spread.p95, spread.p99, spread.max)
    return [*(f"{1e3 * time:,.1f}" for time in times), f"{spread.count:,}"]
