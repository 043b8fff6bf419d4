"""EMULATED: `python -m exahpc.lab.emulated.agent`: the real agent of one task over emulated replicas.

Everything of the agent is real (links, relay, tokenizer, leases) but the steps that it starts.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from exahpc.agent.__main__ import run
from exahpc.lab.emulated import program
from exahpc.lab.emulated.label import labelled
from exahpc.lab.emulated.starter import EmulatedStarter
from exahpc.wire.folder import Folder


@click.command()
@click.option("--folder", type=click.Path(exists=True, path_type=Path), required=True, help="Deployment's folder.")
@click.option("--pool", required=True)
@click.option("--task", type=int, required=True, help="Index of the array task.")
@click.option("--latency", default="{}", help="What steps take, as JSON (exahpc.lab.emulated.model.Latency).")
def main(folder: Path, pool: str, task: int, latency: str) -> None:
    """Serve one task of a deployment whose model is named "emulated..." with emulated replicas."""

    def work() -> int:
        labelled(Folder(folder))  # before anything is read
        return run(Folder(folder), pool, task, partial(EmulatedStarter, latency=latency))

    program.run(work)


if __name__ == "__main__":
    main()
