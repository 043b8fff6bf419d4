"""What `exahpc plan` prints."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table

from exahpc.deployment.sizing import Choice
from exahpc.deployment.units import memory as words
from exahpc.lab.plan import Plan, served

_SHOWN = 8
"""Grids that work and are shown; --json has all."""


def data(found: Plan, config: Mapping[str, Any], commands: Sequence[tuple[str, ...]]) -> dict[str, Any]:
    model, rank, fleet = found.deployment.model, found.rank, found.fleet
    plain = msgspec.to_builtins
    return {
        "model": {
            "path": model.path,
            "served": served(config),
            "dtype": model.dtype,
            "quantization": model.quantization,
            "context": model.context,
        },
        "device": plain(found.device),
        "rank": {**plain(rank), "used": rank.used, "free": rank.free},
        "kv_bytes_per_token": found.kv_per_token,
        "kv_room_tokens": found.kv_room,
        "tokens_per_sequence": found.tokens,
        "replica": plain(found.chosen),
        "grids": [plain(one) for one in found.grids],
        "fleet": fleet and {**plain(fleet), "array": fleet.array},
        "commands": [list(argv) for argv in commands],
    }


def show(found: Plan, config: Mapping[str, Any], commands: Sequence[tuple[str, ...]]) -> None:
    console = Console(highlight=False, markup=False, soft_wrap=True)
    model, device, chosen = found.deployment.model, found.device, found.chosen
    form = model.dtype if model.quantization == "none" else f"{model.quantization}, rest {model.dtype}"
    console.print(f"{model.path}: {form}, context {model.context}, on {device.title}, {device.per_node} a node")
    if not served(config):
        console.print(f"Planned only: model_type {config.get('model_type')!r} is not served.")
    console.print(f"\nThe fullest rank of TP {chosen.tensor_parallel} x PP {chosen.pipeline_parallel}")
    console.print(_ledger(found))
    bound = "" if chosen.held <= chosen.sequences else f" (memory would hold {chosen.held}: raise --max-sequences)"
    console.print(
        f"\nA replica: {chosen.tokens} tokens of KV cache at {words(found.kv_per_token)} each, room for "
        f"{found.kv_room}; {chosen.sequences} sequences of {found.tokens} tokens at once{bound}"
    )
    console.print(_where(chosen))
    if found.deployment.launcher.kind == "local":
        return  # one machine, one way to use it
    console.print("\nGrids that work, those that run most sequences on a node first")
    console.print(_working(found))
    for reason, grids in _failing(found.grids, device.memory).items():
        console.print(f"  not {', '.join(grids)}: {reason}")
    if found.fleet is not None:
        fleet = found.fleet
        console.print(
            f"\nThe fleet: {fleet.concurrency} sequences at once with {fleet.headroom:.0%} headroom: "
            f"replicas {fleet.replicas}, nodes {fleet.nodes}, job array {fleet.array}"
        )
    for argv in commands:
        click.echo(shlex.join(argv))


def _ledger(found: Plan) -> Table:
    rank = found.rank
    table = Table("part", box=None, pad_edge=False)
    table.add_column("size", justify="right")
    table.add_column("share", justify="right")
    rows = (
        ("weights", rank.weights),
        ("KV cache", rank.kv),
        ("activations, workspace", rank.activations),
        ("runtime", rank.runtime),
        ("communication", rank.communication),
        ("reserve", rank.reserve),
        ("free", rank.free),
        ("memory", rank.memory),
    )
    for name, count in rows:
        table.add_row(name, words(count), f"{count / rank.memory:.1%}")
    return table


def _where(chosen: Choice) -> str:
    if chosen.nodes_per_replica > 1:
        return f"A replica spans {chosen.nodes_per_replica} nodes"
    return f"Replicas on a node: {chosen.replicas_per_node}"


def _working(found: Plan) -> Table:
    table = Table("grid", "fit", "run", "replicas a node", "a node runs", "", box=None, pad_edge=False)
    good = [one for one in found.grids if not one.problem]
    good.sort(key=lambda one: (-one.of_node, one.grid.ranks, one.pipeline_parallel))
    for one in good[:_SHOWN]:
        table.add_row(
            f"TP {one.tensor_parallel} x PP {one.pipeline_parallel}",
            str(one.held),
            str(one.sequences),
            str(one.replicas_per_node) if one.nodes_per_replica == 1 else f"1/{one.nodes_per_replica}",
            f"{float(one.of_node):g}",
            one.note,
        )
    return table


def _failing(grids: tuple[Choice, ...], memory: int) -> dict[str, list[str]]:
    """Reason -> grids, in the order of the grids; those that only lack memory share one."""
    found: dict[str, list[str]] = {}
    needs = sorted(one.needs for one in grids if one.needs)
    for one in grids:
        reason = one.problem
        if one.needs:
            least, most = words(needs[0]), words(needs[-1])
            reason = f"a rank needs {least} to {most} before any KV cache, and has {words(memory)}: more ranks"
        if reason:
            found.setdefault(reason, []).append(f"{one.tensor_parallel}x{one.pipeline_parallel}")
    return found
