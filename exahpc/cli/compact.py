"""`exahpc batch compact`: the folder of a batch becomes one file."""

from __future__ import annotations

from pathlib import Path

import click

from exahpc.batch import compact as compacting
from exahpc.cli.batch_view import bar, ending
from exahpc.cli.common import notes

_OUTPUT = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("parts", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=_OUTPUT, help="File to make  [default: the one that PARTS belongs to]")
@click.option("--partial", is_flag=True, help="Only the rows that are done; the batch can still go on.")
@click.option("--keep-parts", is_flag=True, help="Leave PARTS in place.")
def compact(parts: Path, output: Path | None, partial: bool, keep_parts: bool) -> None:
    """Make one results file of PARTS, the .parts folder of a batch.

    `batch run` does this at its end. This is for a batch that ended while nobody ran it, and for a look at what is
    done so far (--partial, and -o another file). PARTS is removed once all of its rows are in the file that it
    belongs to.

    Exit code 0 whatever the rows ended with.
    """
    with bar(notes, "writing") as progress:
        summary = compacting.compact(parts, output, partial=partial, keep_parts=keep_parts, progress=progress)
    for line in ending(summary):
        notes.print(line, markup=False, soft_wrap=True)
    click.echo(str(summary.path))
