"""`exahpc pack`: this environment as one file for the nodes."""

from __future__ import annotations

from pathlib import Path

import click

from exahpc.cli.common import json_text, notes
from exahpc.deployment.units import memory
from exahpc.launch import pack as packing


@click.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="FILE.tar.zst, .tar.gz or .tar, where all nodes can read it.",
)
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Paths inside the environment to leave out.")
@click.option("--json", "as_json", is_flag=True, help="Its figures as JSON.")
def pack(output: Path, exclude: tuple[str, ...], as_json: bool) -> None:
    """Pack the virtual environment of this exahpc into one file, for nodes to unpack onto their own disks.

    `launcher.environment` in the deployment file names it then.

    \b
    exahpc pack -o /scratch/me/exahpc.tar.zst
    exahpc pack -o small.tar.gz --exclude '*/site-packages/matplotlib/*'
    """
    made = packing.pack(output, exclude)
    if as_json:
        click.echo(
            json_text({"output": str(output), "files": made.files, "size": made.size, "packed": made.packed})
        )
        return
    click.echo(f"{output}: {made.files} files, {memory(made.size)}, packed {memory(made.packed)}")
    notes.print(f'[launcher]\nenvironment = "{output.absolute()}"', markup=False)
