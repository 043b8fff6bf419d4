"""What each fault of a cluster costs, and how soon it is noticed and mended; real Slurm, MPI and replicas.

    python bench/faults.py [--rounds 1] [--only "node crash"]

Brings up a development cluster of six nodes (root), a deployment of four replicas of a tiny model on it, and
strikes one fault after another while official clients stream and a batch file runs. *noticed*: until the fleet
table that entries route by has dropped what was hit; *whole*: until every replica is ready again (the development
cluster requeues in seconds; a site takes two minutes). Writes bench/results/faults.json; four minutes a round.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import common

sys.path.insert(0, str(common.ROOT))

from tests.cluster import faults
from tests.cluster.conftest import DevCluster, why_not
from tests.live import Live
from tests.tiny import make_model


def strike_all(field: faults.Field, only: str | None) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = []
    for fault in faults.FAULTS:
        if only not in (None, fault.name):
            continue
        found = field.suffer(fault)
        print(found, flush=True)
        runs.append(
            {
                "side": "exahpc",
                "case": found.fault,
                "requests": found.requests,
                "failed": found.failed.total() + found.differing,
                "rows_wrong": found.rows,
                "noticed_s": found.noticed,
                "whole_s": found.whole,
            }
        )
    return runs


@click.command()
@click.option("--rounds", default=1, show_default=True)
@click.option("--only", help="One fault, by its name: nothing is written.")
def main(rounds: int, only: str | None) -> None:
    """Break a deployment, one thing at a time."""
    reason = why_not()
    if reason:
        raise click.ClickException(reason)
    nodes = DevCluster("fl", 6)
    nodes.up()
    home = Path(tempfile.mkdtemp(prefix="exahpc-faults-", dir="/var/tmp"))
    live = Live(home, "faults", {"SLURM_CONF": nodes.conf})
    runs: list[dict[str, Any]] = []
    try:
        for _ in range(rounds):
            live.up(faults.deployment("faults", make_model(home / "models" / "tiny"), nodes.nodes[0]))
            field = faults.Field(live, nodes, wanted=4)
            runs += strike_all(field, only)
            field.close()
            live.run("down", "faults")
    finally:
        nodes.down()
        shutil.rmtree(home, ignore_errors=True)
    if only is not None:
        return
    comparison: dict[str, dict[str, Any]] = {}
    for case in dict.fromkeys(run["case"] for run in runs):
        mine = [run for run in runs if run["case"] == case]
        noticed = [run["noticed_s"] for run in mine if run["noticed_s"] is not None]
        comparison[case] = {
            "requests": sum(run["requests"] for run in mine),
            "failed": sum(run["failed"] for run in mine),
            "rows wrong": sum(len(run["rows_wrong"]) for run in mine),
            "noticed, s": max(noticed) if noticed else None,
            "whole, s": max(run["whole_s"] for run in mine),
        }
    common.write(
        "faults",
        what="faults of a cluster under online and batch load; the slowest of all rounds",
        runs=runs,
        comparison=comparison,
        packages=common.versions("torch", "deepspeed", "mpi4py", "openai"),
        notes=(
            "real Slurm (six nodes as namespaces of one machine), real MPI, a tiny random model",
            "failed: requests that ended in an error, or whose text differs from an undisturbed one",
            "head requeued: its entries end with it, so clients stream through an entry beside an agent",
            "nothing to be noticed: the replica lives on (agent, broker, head, slurmd)",
        ),
    )


if __name__ == "__main__":
    main()
