"""`python -m exahpc.replica`: one MPI rank of one replica. The agent starts it through srun or mpirun."""

from __future__ import annotations

from pathlib import Path

import click

from exahpc.replica.guard import guarded


@click.command()
@click.option("--folder", type=click.Path(exists=True, path_type=Path), required=True, help="Deployment's folder.")
@click.option("--pool", required=True)
@click.option("--slot", type=int, required=True, help="Number of the replica in its pool.")
@click.option("--incarnation", type=int, required=True)
@click.option("--socket", type=click.Path(path_type=Path), required=True, help="Where rank 0 listens.")
@click.option("--version", default="", help="Label of the deployment file to serve; default: deployment.toml.")
def main(folder: Path, pool: str, slot: int, incarnation: int, socket: Path, version: str) -> None:
    """One rank of a replica; its world must have tensor_parallel x pipeline_parallel ranks."""

    def body() -> None:
        from exahpc.replica.rank import serve

        serve(folder, pool, slot, incarnation, socket, version)

    guarded(body)


if __name__ == "__main__":
    main()
