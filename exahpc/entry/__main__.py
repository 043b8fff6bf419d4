"""`python -m exahpc.entry`: started by slurm/head.sbatch, and beside an agent by slurm/replica.sbatch."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import click

from exahpc.entry.main import run
from exahpc.errors import ExahpcError
from exahpc.telemetry import logs
from exahpc.wire.folder import Folder


@click.command()
@click.option("--folder", required=True, type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option("--index", required=True, type=click.IntRange(min=0), help="Number of this entry in its place.")
@click.option("--beside", default="", metavar="POOL/TASK", help="The agent on whose node it runs; else the head.")
def main(folder: Path, index: int, beside: str) -> None:
    """One HTTP gateway of the deployment in FOLDER."""
    logs.begin(f"%(asctime)s %(levelname)s {beside and f'{beside} '}entry-{index} %(name)s: %(message)s")
    try:
        run(Folder(folder), index, beside)
    except ExahpcError as error:
        logging.getLogger(__name__).error("%s", error)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
