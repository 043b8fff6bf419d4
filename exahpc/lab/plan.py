"""A plan: a model on nodes of a shape, from its sizes to the fleet, and the deployment that it makes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from exahpc.deployment.architectures import check
from exahpc.deployment.families import FAMILIES
from exahpc.deployment.grid import kv_tokens
from exahpc.deployment.known_models import KNOWN, find
from exahpc.deployment.memory import Case, Grid, Rank, most_tokens, rank
from exahpc.deployment.rules import merged
from exahpc.deployment.shape import ModelShape
from exahpc.deployment.sizing import Choice, Fleet, best, choice, choices, fleet_for, fleet_of
from exahpc.deployment.spec import Deployment, Pool
from exahpc.errors import DeploymentError

CONTEXT = 4096
"""Where nobody says: enough for most questions, and within what all known models were made for."""


class Device(msgspec.Struct, frozen=True):
    """What one rank runs on. memory, runtime: bytes, see `memory.Case`; per_node: ranks that a node takes."""

    title: str
    memory: int
    runtime: int
    per_node: int


class Wish(msgspec.Struct, frozen=True):
    """What is to be served. tokens: of one sequence, prompt and answer; concurrency, nodes: one of them or none;
    headroom: share of the concurrency on top; grid: None for the best one."""

    tokens: int
    concurrency: int | None = None
    nodes: int | None = None
    headroom: float = 0.3
    grid: Grid | None = None
    reserve: float = 0.05
    kv_bytes: float | None = None


class Plan(msgspec.Struct, frozen=True):
    """kv_per_token: bytes of one token in all layers; kv_room: tokens that the chosen grid has room for; grids:
    all that were looked at; fleet: None where nothing says how large it is; deployment: with the chosen grid."""

    device: Device
    kv_per_token: float
    kv_room: int
    tokens: int
    rank: Rank
    chosen: Choice
    grids: tuple[Choice, ...]
    fleet: Fleet | None
    deployment: Deployment


def config_of(model: str) -> tuple[Mapping[str, Any], Path | None]:
    """(config.json, folder) of a checkpoint's folder, of the file itself, or (sizes, None) of a known model.

    Raises DeploymentError for what is none of them.
    """
    path = Path(model).expanduser()
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        known = find(model)
        if known is not None:
            return KNOWN[known], None
        raise DeploymentError(
            f"MODEL = {model!r}: no known model (`exahpc plan --list` names them), and {_no_config(path)}"
        )
    try:
        config = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise DeploymentError(f"{file} cannot be read: {error}: name a Hugging Face config.json") from None
    if not isinstance(config, dict):
        raise DeploymentError(f"{file} must hold one JSON object, as a Hugging Face config.json does")
    return config, file.absolute().parent


def _no_config(path: Path) -> str:
    """Why there is no model at this path, and what to name instead."""
    if not path.is_dir():
        return "no such file or folder"
    for pattern in ("*/config.json", "snapshots/*/config.json"):  # the latter: the library's cache of downloads
        if inside := sorted(file.parent for file in path.glob(pattern)):
            return f"a folder without a config.json; there is one in {inside[-1]}: name that"
    forms = [name for name in (".safetensors", ".gguf", ".bin", ".pth") if any(path.glob(f"*{name}"))]
    holds = f"a folder with {', '.join(forms)} files but" if forms else "a folder with"
    return f"{holds} no config.json: a Hugging Face checkpoint has one beside its weights, copy it too"


def served(config: Mapping[str, Any]) -> bool:
    return config.get("model_type") in FAMILIES


def make(
    deployment: Deployment, pool: Pool, config: Mapping[str, Any], device: Device, wish: Wish, *, fixed: bool
) -> Plan:
    """The plan for one pool of a deployment.

    fixed: the pool's grid, cache and replicas a task are as its file says; else they are chosen here. A known
    model that is not served is planned for all the same. Raises DeploymentError when it cannot work.
    """
    model = deployment.model
    known = None if not served(config) and config in KNOWN.values() else config
    if known is not None:
        check(known, tensor_parallel=1, pipeline_parallel=1, context=model.context)
    _check(wish, model.context)
    case = Case(
        ModelShape.of(config), model.dtype, model.quantization, model.context, pool.max_sequences,
        device.memory, device.runtime, wish.reserve, wish.kv_bytes,
    )  # fmt: skip
    grids = choices(case, known, device.per_node, wish.tokens)
    grid = Grid(pool.tensor_parallel, pool.pipeline_parallel) if fixed else wish.grid
    if grid is None:
        chosen = best(grids) or _nothing(grids)
    else:
        chosen = choice(case, known, device.per_node, wish.tokens, grid)
        if chosen.problem:
            raise DeploymentError(
                f"tensor_parallel = {grid.tensor_parallel}, pipeline_parallel = {grid.pipeline_parallel}: "
                f"{chosen.problem}"
            )
    if fixed:
        chosen = _as_written(case, chosen, pool, device, model.context, wish.tokens)
    fleet = _fleet(chosen, pool, wish, fixed)
    replicas = fleet.replicas if fleet else chosen.replicas_per_node
    pool = msgspec.structs.replace(
        pool,
        tensor_parallel=chosen.tensor_parallel,
        pipeline_parallel=chosen.pipeline_parallel,
        nodes_per_replica=chosen.nodes_per_replica,
        replicas_per_task=chosen.replicas_per_node,
        replicas=replicas,
        max_sequences=pool.max_sequences if fixed else chosen.sequences,
        kv_tokens=pool.kv_tokens if fixed else chosen.tokens,
    )
    spans = chosen.nodes_per_replica > 1 and not fixed
    if spans and merged(deployment.slurm, pool.slurm).switches is None:  # without effect where there are none
        pool = msgspec.structs.replace(pool, slurm=msgspec.structs.replace(pool.slurm, switches="1@5:00"))
    pools = tuple(pool if one.name == pool.name else one for one in deployment.pool)
    return Plan(
        device=device,
        kv_per_token=case.kv_per_token,
        kv_room=most_tokens(case, chosen.grid),
        tokens=wish.tokens,
        rank=rank(case, chosen.grid, chosen.tokens),
        chosen=chosen,
        grids=tuple(grids),
        fleet=fleet,
        deployment=msgspec.structs.replace(deployment, pool=pools),
    )


def devices_of_node(deployment: Deployment, pool: Pool) -> int | None:
    """Accelerators of a node by the file's gpus_per_node ("a100:4") or gres ("gpu:a100:4"), None for no number."""
    resources = merged(deployment.slurm, pool.slurm)
    gres = (entry for entry in (resources.gres or "").split(",") if entry.startswith("gpu"))
    last = (resources.gpus_per_node or next(gres, "")).split("(")[0].rsplit(":", 1)[-1]
    return int(last) if last.isdecimal() and int(last) else None


def _check(wish: Wish, context: int) -> None:
    if not 1 <= wish.tokens <= context:
        raise DeploymentError(
            f"--tokens = {wish.tokens}: a sequence has 1 to {context} tokens (the context): "
            "lower it, or raise --context"
        )
    if wish.kv_bytes is not None and wish.kv_bytes < 1:
        raise DeploymentError(
            f"--kv-bytes-per-token = {wish.kv_bytes:g}: a cached token takes a byte at least: "
            "give the bytes of all layers, for instance 0.5MB"
        )
    if wish.concurrency is not None and wish.nodes is not None:
        raise DeploymentError(
            f"--concurrency = {wish.concurrency} and --nodes = {wish.nodes}: one follows from the other, give one"
        )


def _nothing(grids: list[Choice]) -> Choice:
    tightest = max(grids, key=lambda one: (one.problem.startswith(("a rank", "room")), one.grid.ranks))
    grid = f"TP {tightest.tensor_parallel} x PP {tightest.pipeline_parallel}"
    raise DeploymentError(
        f"no grid works; the largest one tried, {grid}: {tightest.problem}. "
        "Else: --quantization int8, a shorter --context, or accelerators with more memory"
    )


def _as_written(case: Case, chosen: Choice, pool: Pool, device: Device, context: int, tokens: int) -> Choice:
    """The choice with what the file says in the place of what would be best."""
    room, wanted = most_tokens(case, chosen.grid), kv_tokens(pool, context)
    where = f"pool {pool.name!r}"
    if wanted < context:
        raise DeploymentError(
            f"{where}: kv_tokens = {wanted} must hold one whole context: raise it, or lower --context = {context}"
        )
    if wanted > room:
        raise DeploymentError(
            f"{where}: kv_tokens = {wanted}{'' if pool.kv_tokens else ' (max_sequences x context / 2)'}, but "
            f"there is room for {room}: set kv_tokens to at most {room}, or use more ranks"
        )
    ranks = pool.replicas_per_task * pool.ranks_per_replica // pool.nodes_per_replica
    if ranks > device.per_node:
        raise DeploymentError(
            f"{where}: replicas_per_task = {pool.replicas_per_task} of {pool.ranks_per_replica} ranks needs "
            f"{ranks} accelerators a node, which has {device.per_node}: lower it, or give another --per-node"
        )
    held = wanted // tokens
    return msgspec.structs.replace(
        chosen,
        tokens=wanted,
        held=held,
        sequences=min(held, pool.max_sequences),
        nodes_per_replica=pool.nodes_per_replica,
        replicas_per_node=pool.replicas_per_task,
    )


def _fleet(chosen: Choice, pool: Pool, wish: Wish, fixed: bool) -> Fleet | None:
    if wish.concurrency is not None:
        return fleet_for(wish.concurrency, wish.headroom, chosen)
    if wish.nodes is not None:
        return fleet_of(wish.nodes, wish.headroom, chosen)
    return fleet_of(pool.tasks * pool.nodes_per_replica, wish.headroom, chosen) if fixed else None
