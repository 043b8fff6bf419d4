"""A curve as files: JSON and CSV always, a picture where matplotlib is installed."""

from __future__ import annotations

import csv
import io
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from exahpc.errors import ExahpcError
from exahpc.lab.curve import Curve
from exahpc.lab.level import Level

MIB = 2**20


def make(folder: Path) -> None:
    """Make the folder, before hours of measuring. Raises ExahpcError when nothing can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ExahpcError(f"nothing can be written to {folder} ({error.strerror}): name another folder") from None


def write(curve: Curve, folder: Path) -> list[Path]:
    """curve.json and curve.csv in `folder`, which is made. Returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    data, table = folder / "curve.json", folder / "curve.csv"
    data.write_bytes(msgspec.json.format(msgspec.json.encode(curve)) + b"\n")
    table.write_text(as_csv(curve))
    return [data, table]


def row(curve: Curve, one: Level) -> dict[str, Any]:
    """One level as a flat record: milliseconds, MiB, shares of 0..1; None where nothing was seen or is known."""
    used = one.kv_tokens
    return {
        "concurrency": one.concurrency,
        "tokens_per_s": round(one.tokens_per_second, 2),
        "first_token_p50_ms": round(one.first_token.p50 * 1e3, 2),
        "first_token_p99_ms": round(one.first_token.p99 * 1e3, 2),
        "between_p50_ms": round(one.between.p50 * 1e3, 2),
        "between_p99_ms": round(one.between.p99 * 1e3, 2),
        "kv_tokens": used,
        "kv_share": None if used is None or not curve.kv_capacity else round(used / curve.kv_capacity, 4),
        "kv_mib": None if used is None or not curve.kv_bytes else round(used * curve.kv_bytes / MIB, 1),
        "memory_mib": None if one.memory is None else round(one.memory / MIB, 1),
        "running": one.running,
        "waiting": one.waiting,
        "requests": one.requests,
        "refused": one.refused,
        "knee": one.concurrency == curve.knee,
    }


def as_csv(curve: Curve) -> str:
    """A header and a line for each level; empty cells where nothing was seen."""
    rows = [row(curve, one) for one in curve.levels]
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0] if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def figure(rows: int, size: tuple[float, float]) -> tuple[Any, Any]:
    """(figure, its axes one below the other). Raises ExahpcError when matplotlib is missing."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ExahpcError("no picture without matplotlib: pip install 'exahpc[plot]'") from None
    made = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(made)
    return made, made.subplots(rows, sharex=True)


def plot(curve: Curve, paths: list[Path]) -> None:
    """The picture, in the format of each path's suffix. Raises ExahpcError when matplotlib is missing."""
    picture, (speed, latency, memory) = figure(3, (7, 8))
    rows = [row(curve, one) for one in curve.levels]
    x = [r["concurrency"] for r in rows]
    speed.plot(x, [r["tokens_per_s"] for r in rows], "o-", color="tab:blue")
    speed.set_ylabel("tokens/s")
    speed.set_ylim(bottom=0)
    for key, name, colour in (
        ("first_token", "first token", "tab:orange"),
        ("between", "between tokens", "tab:green"),
    ):
        latency.plot(x, [r[f"{key}_p50_ms"] for r in rows], "o-", color=colour, label=f"{name}, P50")
        latency.plot(x, [r[f"{key}_p99_ms"] for r in rows], "o--", color=colour, label=f"{name}, P99")
    latency.set_yscale("log")
    latency.set_ylabel("ms")
    latency.legend(fontsize="small")
    memory.plot(x, _numbers(rows, "kv_share", 100), "o-", color="tab:purple")
    memory.set_ylabel(f"KV cache, % of {curve.kv_capacity:,} tokens", color="tab:purple")
    memory.set_ylim(bottom=0)
    if any(r["memory_mib"] is not None for r in rows):
        right = memory.twinx()
        right.plot(x, _numbers(rows, "memory_mib", 1), "s:", color="tab:gray")
        right.set_ylabel("memory of the replicas, MiB", color="tab:gray")
        right.set_ylim(bottom=0)
    memory.set_xlabel("requests at once")
    memory.set_xscale("log", base=2)
    memory.set_xticks(x, [str(n) for n in x])
    for axes in (speed, latency, memory):
        axes.grid(alpha=0.3)
        if curve.knee is not None:
            axes.axvline(curve.knee, color="tab:red", linewidth=1, linestyle="--")
    if curve.knee is not None:
        speed.annotate(f" knee: {curve.knee}", (curve.knee, 0), color="tab:red", va="bottom")
    speed.set_title(
        f"{curve.model}: {curve.replicas} replica{'s' * (curve.replicas != 1)}, prompts of {curve.prompt} tokens, "
        f"answers of about {curve.new}",
        fontsize="medium",
    )
    for path in paths:
        picture.savefig(path, dpi=150)


def _numbers(rows: list[dict[str, Any]], key: str, factor: float) -> list[float]:
    return [float("nan") if r[key] is None else r[key] * factor for r in rows]
