"""A ladder as files: JSON, HDF5, and pictures where matplotlib is installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from exahpc.lab.ladder.fit import BEND, Estimate
from exahpc.lab.ladder.values import Ladder, Step
from exahpc.lab.report import figure
from exahpc.telemetry import tables
from exahpc.wire.folder import write_atomic

FILE = "ladder.json"

_COLUMNS: dict[str, Callable[[Step], float]] = {
    "nodes": lambda s: s.nodes,
    "replicas": lambda s: s.replicas,
    "tokens_per_second": lambda s: s.tokens_per_second,
    "tokens_per_second_error": lambda s: s.error,
    "tokens_per_second_drained": lambda s: s.drained,
    "requests_per_second": lambda s: s.requests_per_second,
    "goodput": lambda s: float("nan") if s.goodput is None else s.goodput,
    "requests": lambda s: s.requests,
    "bad": lambda s: s.bad,
    "ttft_p50_s": lambda s: s.ttft.p50,
    "ttft_p99_s": lambda s: s.ttft.p99,
    "tbt_p50_s": lambda s: s.tbt.p50,
    "tbt_p99_s": lambda s: s.tbt.p99,
    "e2e_p50_s": lambda s: s.e2e.p50,
    "e2e_p99_s": lambda s: s.e2e.p99,
}


def write(ladder: Ladder, folder: Path) -> list[Path]:
    """ladder.json and ladder.h5 as they are now. Returns their paths."""
    data, table = folder / FILE, folder / "ladder.h5"
    write_atomic(data, msgspec.json.format(msgspec.json.encode(ladder)) + b"\n")
    columns: dict[str, Sequence[float]] = {
        name: [cell(step) for step in ladder.steps] for name, cell in _COLUMNS.items()
    }
    columns["efficiency"] = [one.value for one in ladder.efficiency]
    columns["efficiency_error"] = [one.error for one in ladder.efficiency]
    attributes = {"deployment": ladder.deployment, "model": ladder.model, "date": ladder.date}
    tables.write(table, columns, attributes | {"load": str(ladder.question.load), "emulated": ladder.emulated})
    return [data, table]


def plot(ladder: Ladder, paths: list[Path]) -> None:
    """The picture, in the format of each path's suffix. Raises ExahpcError when matplotlib is missing."""
    picture, (speed, share, latency) = figure(3, (7, 8))
    nodes = [step.nodes for step in ladder.steps]
    speed.errorbar(
        nodes,
        [step.tokens_per_second for step in ladder.steps],
        [step.error for step in ladder.steps],
        fmt="o",
        capsize=3,
        color="tab:blue",
        label="measured" if not ladder.emulated else "EMULATED",
    )
    if ladder.fit is not None:
        _curve(speed, nodes[0], nodes[-1], ladder.fit.at, "-", "fit")
        last = ladder.beyond[-1][0] if ladder.beyond else nodes[-1]
        _curve(speed, nodes[-1], last, ladder.fit.at, ":", "EXTRAPOLATED")
    speed.set_ylabel("tokens/s")
    speed.set_ylim(bottom=0)
    efficiency = ladder.efficiency
    share.errorbar(
        nodes,
        [100 * one.value for one in efficiency],
        [100 * one.error for one in efficiency],
        fmt="o-",
        capsize=3,
        color="tab:green",
    )
    share.axhline(100 * BEND, color="tab:red", linewidth=1, linestyle="--")
    share.set_ylabel("efficiency, %")
    share.set_ylim(bottom=0)
    for key, name, colour in (("ttft", "first token", "tab:orange"), ("e2e", "whole answer", "tab:purple")):
        for rank, line in (("p50", "o-"), ("p99", "o--")):
            y = [1e3 * getattr(getattr(step, key), rank) for step in ladder.steps]
            latency.plot(nodes, y, line, color=colour, label=f"{name}, {rank.upper()}")
    latency.set_yscale("log")
    latency.set_ylabel("ms")
    latency.set_xlabel("nodes")
    latency.set_xscale("log", base=2)
    ticks = [*nodes, *(n for n, _ in ladder.beyond)]
    latency.set_xticks(ticks, [str(n) for n in ticks])
    for axes in (speed, share, latency):
        axes.grid(alpha=0.3)
    for axes in (speed, latency):
        axes.legend(fontsize="small")
    speed.set_title(
        f"{ladder.model}: {ladder.question.load} of each node{', EMULATED' if ladder.emulated else ''}",
        fontsize="medium",
    )
    for path in paths:
        picture.savefig(path, dpi=150)


def _curve(axes: Any, first: float, last: float, at: Callable[[float], Estimate], line: str, name: str) -> None:
    if last <= first:
        return
    x = [first + (last - first) * n / 50 for n in range(51)]
    y = [at(n) for n in x]
    axes.plot(x, [one.value for one in y], line, color="tab:gray", label=name)
    low, high = [one.value - one.error for one in y], [one.value + one.error for one in y]
    axes.fill_between(x, low, high, color="tab:gray", alpha=0.2)


def words(ladder: Ladder) -> list[str]:
    """What the fit says, for people."""
    law = ladder.fit
    if law is None:
        return []
    most = ladder.steps[-1].nodes
    found = []
    if law.bend is None:
        found.append(f"it does not bend up to {most} nodes: no loss that the measurements tell from their noise")
    else:
        where = "" if law.bend.value <= most else f" (EXTRAPOLATED: {most} nodes were measured)"
        found.append(
            f"it bends at {law.bend.value:.1f} +- {law.bend.error:.1f} nodes: there efficiency falls below "
            f"{BEND:.0%}{where}"
        )
    if law.peak is not None:
        where = "" if law.peak <= most else " (EXTRAPOLATED)"
        found.append(f"beyond {law.peak:.0f} nodes more of them serve less{where}")
    for nodes, rate in ladder.beyond:
        found.append(f"EXTRAPOLATED to {nodes} nodes: {rate.value:,.0f} +- {rate.error:,.0f} tokens/s")
    return found
