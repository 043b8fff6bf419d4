"""`exahpc plan`: how many nodes a model needs, or what so many nodes serve."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any, get_args

import click
import msgspec

from exahpc.cli.common import json_text, notes
from exahpc.cli.plan_view import data, show
from exahpc.deployment import parse, render
from exahpc.deployment.accelerators import ACCELERATORS
from exahpc.deployment.accelerators import Name as AcceleratorName
from exahpc.deployment.known_models import KNOWN
from exahpc.deployment.memory import Grid
from exahpc.deployment.spec import Deployment, Dtype, Launcher, Model, Pool, Quantization, SlurmResources
from exahpc.deployment.units import memory as words
from exahpc.deployment.units import size
from exahpc.errors import DeploymentError
from exahpc.lab.plan import CONTEXT, Device, Plan, Wish, config_of, devices_of_node, make, served
from exahpc.launch import place, prepare, start

_RUNTIME = 2**30
"""Bytes that libraries take of an unknown accelerator, or a rank's interpreter of a machine: an estimate."""


class Bytes(click.ParamType[int]):
    """Bytes, with a unit or without."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else size(value)
        except ValueError as error:
            self.fail(f"{value!r}: {error}", param, ctx)


def _listed(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Callback of --list."""
    if value:
        click.echo("Models: " + ", ".join(KNOWN))
        click.echo("Accelerators:")
        for name, one in ACCELERATORS.items():
            click.echo(f"  {name:12}{words(one.memory):>10}  {one.title}")
        ctx.exit()


@click.command()
@click.argument("model", metavar="MODEL")
@click.option("--list", is_flag=True, is_eager=True, expose_value=False, callback=_listed, help="Known names.")
@click.option(
    "--accelerator", type=click.Choice(list(ACCELERATORS)), help="What one rank runs on  [default: the pool's]"
)
@click.option("--memory", type=Bytes(), help="Of one rank's accelerator, for others: 80GB, 64GiB.")
@click.option("--runtime", type=Bytes(), help="What driver and libraries take of it  [default: 0.75 to 1 GiB]")
@click.option("--per-node", type=click.IntRange(1, 1024), help="Accelerators of a node  [default: a usual node's]")
@click.option("--pool", help="Pool of a deployment file  [default: the first]")
@click.option("--dtype", type=click.Choice(get_args(Dtype)), help="[default: bfloat16]")
@click.option("--quantization", type=click.Choice(get_args(Quantization)), help="[default: none]")
@click.option("--context", type=click.IntRange(16), help=f"Most tokens of one sequence  [default: {CONTEXT}]")
@click.option(
    "--tokens", type=click.IntRange(1), help="Of a usual sequence, prompt and answer  [default: context]"
)
@click.option("--max-sequences", type=click.IntRange(1, 65_536), help="That a replica runs at once  [default: 16]")
@click.option("--tensor-parallel", type=click.IntRange(1, 1024), help="This grid instead of the best.")
@click.option("--pipeline-parallel", type=click.IntRange(1, 1024), help="As --tensor-parallel.")
@click.option("--kv-bytes-per-token", type=Bytes(), help="In all layers, instead of what the model's sizes give.")
@click.option(
    "--reserve", type=click.FloatRange(0, 0.9), default=0.05, show_default=True, help="Share of memory left free."
)
@click.option("--concurrency", type=click.IntRange(1), help="Sequences at once that the fleet should serve.")
@click.option("--nodes", type=click.IntRange(1, 100_000), help="Backwards: what so many nodes serve.")
@click.option(
    "--headroom",
    type=click.FloatRange(0, 100),
    default=0.3,
    show_default=True,
    help="Room beyond the concurrency, as a share of it.",
)
@click.option(
    "--write", type=click.Path(dir_okay=False, path_type=Path), help="Write the deployment file of this plan."
)
@click.option("--json", "as_json", is_flag=True, help="All of it as JSON.")
def plan(
    model: str,
    accelerator: AcceleratorName | None,
    memory: int | None,
    runtime: int | None,
    per_node: int | None,
    pool: str | None,
    dtype: Dtype | None,
    quantization: Quantization | None,
    context: int | None,
    tokens: int | None,
    max_sequences: int | None,
    tensor_parallel: int | None,
    pipeline_parallel: int | None,
    kv_bytes_per_token: int | None,
    reserve: float,
    concurrency: int | None,
    nodes: int | None,
    headroom: float,
    write: Path | None,
    as_json: bool,
) -> None:
    """How much memory MODEL takes, what a replica holds, and how many nodes serve so many sequences at once.

    MODEL is a checkpoint's folder or config.json, a known model's name (--list), or a deployment file (.toml),
    whose grid, cache and replicas are then kept. Needs no accelerator and no Slurm.

    \b
    exahpc plan llama-3.1-70b --accelerator h100-80 --context 8192 --concurrency 5000
    exahpc plan jobs/many-nodes.toml --accelerator pvc-tile --nodes 64
    exahpc plan /models/Llama-3.1-8B --accelerator a100-40 --write jobs/mine.toml
    """
    fixed = model.endswith(".toml")
    if write is not None and write.exists():
        raise DeploymentError(f"--write = '{write}': there is such a file: remove it or choose another name")
    if fixed and (tensor_parallel or pipeline_parallel):
        raise click.UsageError("--tensor-parallel, --pipeline-parallel: the grid is the file's, change it there")
    deployment = prepare.read(Path(model)) if fixed else _fresh(model, write)
    chosen = _pool(deployment, pool)
    config, folder = config_of(deployment.model.path if fixed else model)
    if folder is None and (fixed or write is not None):
        notes.print(f"No folder {deployment.model.path}: planned by the published sizes.", markup=False)
    deployment, chosen = _changed(
        deployment,
        chosen,
        {"dtype": dtype, "quantization": quantization, "context": context or _default_context(config, fixed)},
        max_sequences,
    )
    device = _device(deployment, chosen, accelerator, memory, runtime, per_node)
    if not fixed:
        slurm = SlurmResources(gpus_per_node=str(device.per_node))
        chosen = msgspec.structs.replace(chosen, accelerator=accelerator if memory is None else None)
        deployment = msgspec.structs.replace(deployment, slurm=slurm, pool=(chosen,))
    grid = Grid(tensor_parallel or 1, pipeline_parallel or 1) if tensor_parallel or pipeline_parallel else None
    found = make(
        deployment,
        chosen,
        config,
        device,
        Wish(
            tokens=tokens or deployment.model.context,
            concurrency=concurrency,
            nodes=nodes,
            headroom=headroom,
            grid=grid,
            reserve=reserve,
            kv_bytes=kv_bytes_per_token,
        ),
        fixed=fixed,
    )
    commands = _commands(found)
    if as_json:
        click.echo(json_text(data(found, config, commands)))
    else:
        show(found, config, commands)
    if write is not None:
        _write(found, config, write)


def _fresh(model: str, write: Path | None) -> Deployment:
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", write.stem if write else Path(model).absolute().name).strip("-_")
    path = Path(model).expanduser().absolute()
    folder = path if path.is_dir() else path.parent if path.is_file() else Path(model)
    return Deployment(
        name=name[:63] or "mine",
        model=Model(path=str(folder)),
        pool=(Pool(name="main"),),
        launcher=Launcher(python=sys.executable),
    )


def _pool(deployment: Deployment, name: str | None) -> Pool:
    names = [pool.name for pool in deployment.pool]
    if name is not None and name not in names:
        raise DeploymentError(f"--pool = {name!r}: the file has {', '.join(names)}: choose one of them")
    if name is None and len(names) > 1:
        notes.print(f"Pool {names[0]}; --pool plans another one: {', '.join(names[1:])}", markup=False)
    return deployment.pool_named(name or names[0])


def _default_context(config: Any, fixed: bool) -> int | None:
    positions = config.get("max_position_embeddings")
    if fixed:
        return None
    return min(CONTEXT, positions) if isinstance(positions, int) and positions >= 16 else CONTEXT


def _changed(
    deployment: Deployment, pool: Pool, model: dict[str, Any], max_sequences: int | None
) -> tuple[Deployment, Pool]:
    given = {key: value for key, value in model.items() if value is not None}
    changed = msgspec.structs.replace(pool, max_sequences=max_sequences or pool.max_sequences)
    pools = tuple(changed if one is pool else one for one in deployment.pool)
    served_model = msgspec.structs.replace(deployment.model, **given)
    return msgspec.structs.replace(deployment, model=served_model, pool=pools), changed


def _device(
    deployment: Deployment,
    pool: Pool,
    accelerator: AcceleratorName | None,
    memory: int | None,
    runtime: int | None,
    per_node: int | None,
) -> Device:
    name = accelerator or (pool.accelerator if memory is None else None)
    known = ACCELERATORS[name] if name else None
    local = deployment.launcher.kind == "local"
    here = pool.replicas_per_task * pool.ranks_per_replica
    usual = here if local else devices_of_node(deployment, pool)
    devices = per_node or usual or (known.per_node if known else None)
    if local and known is None and memory is None:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // here
    if memory is None and known is None:
        raise click.UsageError(
            f"what do the ranks run on? Give --accelerator ({', '.join(ACCELERATORS)}) or --memory with its bytes"
        )
    if devices is None:
        raise click.UsageError("--memory alone says nothing about nodes: add --per-node, accelerators of a node")
    title = known.title if known else "this machine's processors" if local else "an accelerator"
    has = memory if memory is not None or known is None else known.memory
    took = runtime if runtime is not None else known.runtime if known else _RUNTIME
    ranks = devices if local else max(1, devices // pool.devices_per_rank)
    return Device(title, has or 0, took, ranks)


def _commands(found: Plan) -> list[tuple[str, ...]]:
    """The sbatch lines, where it is known how many replicas there are to be."""
    deployment = found.deployment
    if found.fleet is None or deployment.launcher.kind == "local":
        return []
    return start.plan(deployment, place.home() / deployment.name)[0]


def _write(found: Plan, config: Any, file: Path) -> None:
    if not served(config):
        raise DeploymentError(
            f"--write: model_type {config.get('model_type')!r} is not served (docs/reference/architectures.md): "
            "choose a model of another family"
        )
    launcher = msgspec.structs.replace(found.deployment.launcher, python=None)
    text = render.toml(msgspec.structs.replace(found.deployment, launcher=launcher))
    parse.load(text, str(file))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    notes.print(f"Wrote {file}.", markup=False)
    if found.deployment.launcher.kind == "slurm":
        notes.print("Add partition, account and time to [slurm], as your site wants them.", markup=False)
    try:
        prepare.check_model(prepare.settled(found.deployment, file.absolute().parent))
    except DeploymentError as error:  # a plan needs no weights, a replica does
        notes.print(f"Before it can serve: {error}", markup=False, soft_wrap=True)
    notes.print(f"Then: exahpc up --dry-run {shlex.quote(str(file))}", markup=False, soft_wrap=True)
