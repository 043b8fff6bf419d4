"""Options of commands that bring up a deployment of their own for a batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, get_args

import click

from exahpc.cli.plan import Bytes
from exahpc.deployment.accelerators import ACCELERATORS
from exahpc.deployment.spec import Dtype, LauncherKind, Quantization
from exahpc.lab.hire import Hire

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

_OPTIONS = (
    click.option(
        "--model", type=click.Path(path_type=Path), help="Checkpoint to run it with, on nodes of its own."
    ),
    click.option(
        "--nodes", type=click.IntRange(1, 100_000), help="Nodes of its own  [default: 1, or as in --like]"
    ),
    click.option("--like", type=_FILE, help="Deployment file that says all else about these nodes."),
    click.option("--pool", help="Pool of --like, when it has several."),
    click.option(
        "--launcher", type=click.Choice(get_args(LauncherKind)), help="[default: slurm where there is sbatch]"
    ),
    click.option("--accelerator", type=click.Choice(list(ACCELERATORS)), help="What one rank runs on."),
    click.option("--memory", type=Bytes(), help="Of one rank's accelerator, for others: 80GB, 64GiB."),
    click.option(
        "--per-node", type=click.IntRange(1, 1024), help="Accelerators of a node  [default: a usual node's]"
    ),
    click.option("--tensor-parallel", type=click.IntRange(1, 1024), help="[default: the best grid]"),
    click.option("--pipeline-parallel", type=click.IntRange(1, 1024), help="As --tensor-parallel."),
    click.option("--context", type=click.IntRange(16), help="Most tokens of one row, prompt and answer."),
    click.option("--max-sequences", type=click.IntRange(1, 65_536), help="Rows that a replica runs at once."),
    click.option("--dtype", type=click.Choice(get_args(Dtype)), help="[default: bfloat16]"),
    click.option("--quantization", type=click.Choice(get_args(Quantization)), help="[default: none]"),
    click.option("--partition", help="Slurm's partition."),
    click.option("--account", help="Account that pays."),
    click.option("--time", help="Walltime of each job; longer batches go on in further jobs."),
)


def takes_nodes(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options; the command gets them as `hire`, and `keep`."""

    @wraps(command)
    def called(*args: Any, **given: Any) -> Any:
        hire = Hire(**{name: given.pop(name) for name in Hire.__struct_fields__})
        return command(*args, hire=hire, **given)

    decorated: Callable[..., Any] = click.option(
        "--keep", is_flag=True, help="Leave the nodes of its own up at the end."
    )(called)
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated
