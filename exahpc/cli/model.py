"""`exahpc model`: something to serve at once, and the forms of what is served."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from exahpc.cli.common import json_text, notes
from exahpc.deployment.spec import Dtype
from exahpc.deployment.units import memory
from exahpc.launch import place
from exahpc.models import prepared
from exahpc.models.catalogue import CATALOGUE, packed
from exahpc.models.checkpoint import Wanted
from exahpc.models.fetch import fetch as fetch_model
from exahpc.models.fetch import is_there


@click.group()
def model() -> None:
    """Fetch small open models, convert checkpoints."""


@model.command()
@click.argument("name", default="smollm2")
@click.option(
    "--into",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder to make; default: NAME in ~/.cache/exahpc/models, where the sample deployments look.",
)
def fetch(name: str, into: Path | None) -> None:
    """Fetch the model NAME (default smollm2) once, as a Hugging Face folder, and print the folder.

    SmolLM2-135M-Instruct has 135 million parameters and fluent English: enough to try everything on a laptop.
    """
    wanted = packed(name)
    folder = (into or place.cache() / wanted.name).expanduser().absolute()
    if not is_there(folder):
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=notes, transient=True) as bar:
            task = bar.add_task(wanted.title, total=1.0)

            def told(step: str, done: float) -> None:
                bar.update(task, description=f"{wanted.title}: {step}", completed=done)
                if not notes.is_terminal:
                    notes.print(f"{wanted.title}: {step}")

            fetch_model(wanted, folder, told)
        notes.print(f"{wanted.title} ({wanted.licence})")
    click.echo(str(folder))


@model.command()
@click.argument("source", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
@click.option(
    "--dtype",
    type=click.Choice(get_args(Dtype)),
    default="bfloat16",
    show_default=True,
    help="Number format of what is not INT8.",
)
@click.option("--int8", is_flag=True, help='Matrices as INT8: serve them with model.quantization = "int8".')
def convert(source: Path, target: Path, dtype: Dtype, int8: bool) -> None:
    """Make the folder TARGET: the checkpoint SOURCE in the form in which it is served.

    Replicas convert by themselves, once on each node; this does it once for all. Nothing has to fit into memory.
    """
    with Progress(BarColumn(), TimeElapsedColumn(), console=notes, transient=True) as bar:
        task = bar.add_task("", total=1.0)
        wanted = Wanted(dtype, "int8" if int8 else "none")
        prepared.prepare(
            source.absolute(), target.absolute(), wanted, lambda done: bar.update(task, completed=done)
        )
    click.echo(str(target.absolute()))


@model.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
def seal(folder: Path) -> None:
    """Write checksums of the checkpoint FOLDER beside it: nodes that copy it then notice damage."""
    notes.print(memory(prepared.seal(folder.absolute())))


@model.command("list")
@click.option("--json", "as_json", is_flag=True, help="As JSON, each with its folder.")
def list_models(as_json: bool) -> None:
    """List what can be fetched."""
    folders = {name: place.cache() / name for name in CATALOGUE}
    if as_json:
        lines = [
            {"name": one.name, "title": one.title, "licence": one.licence, "fetched": is_there(folders[one.name]),
             "folder": str(folders[one.name])}
            for one in CATALOGUE.values()
        ]  # fmt: skip
        click.echo(json_text(lines))
        return
    for found in CATALOGUE.values():
        state = "fetched" if is_there(folders[found.name]) else "not fetched"
        click.echo(f"{found.name}\t{found.title}\t{found.licence}\t{state}")
