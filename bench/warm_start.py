"""From the start of a replica to its first token, and what the first request pays that later ones do not.

    python bench/warm_start.py [--model FOLDER] [--starts 3] [--smoke]

The real program under mpirun, one rank. A start: seconds until it says that it is loaded (hello), which is when
the agent sends its canary. Requests: seconds of 8 prompt tokens and 3 generated ones; in service the canary is the
first, so no user has it. Imports alone: the same libraries in a bare process, wall and processor time.
Writes bench/results/warm-start.json; about a minute and a half on two cores.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import common
import replica
from weight_sharing import IMPORTS

from exahpc.launch import place

REQUESTS = ("first request", "second request", "third request")


def imports() -> dict[str, Any]:
    before, since = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-c", IMPORTS], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"side": "exahpc", "case": "imports", "seconds": time.perf_counter() - since, "cpu_seconds": cpu}


def start(model: Path, number: int) -> list[dict[str, Any]]:
    since = time.perf_counter()
    with replica.running(model, "0", sequences=8) as one:
        runs = [{"side": "exahpc", "case": "loaded", "seconds": time.perf_counter() - since}]
        for case, ids in zip(REQUESTS, replica.prompts(model, 3, 8, number), strict=True):
            begin = time.perf_counter()
            one.decode([ids], 3)
            runs.append({"side": "exahpc", "case": case, "seconds": time.perf_counter() - begin})
    return runs


@click.command()
@click.option("--model", type=click.Path(exists=True, path_type=Path), default=place.cache() / "smollm2")
@click.option("--starts", default=3, show_default=True)
@click.option("--smoke", is_flag=True, help="Print only; the machine may be busy.")
def main(model: Path, starts: int, smoke: bool) -> None:
    """Seconds to the first token."""
    start(model, 0)  # files into memory, kernels compiled: the node's first start is not what is measured
    runs = [run for number in range(starts) for run in (imports(), *start(model, number + 1))]
    cases = ("imports", "loaded", *REQUESTS)
    comparison: dict[str, dict[str, Any]] = {
        case: {"number": "seconds", "exahpc": round(common.median(runs, "exahpc", case, "seconds"), 4)}
        for case in cases
    }
    cpu = statistics.median(run["cpu_seconds"] for run in runs if run["case"] == "imports")
    comparison["imports, processor time"] = {"number": "seconds", "exahpc": round(cpu, 3)}
    if smoke:
        for case, row in comparison.items():
            click.echo(f"{case}: {row}")
        return
    common.write(
        "warm-start",
        what="one replica, one rank, SmolLM2-135M bfloat16, files in the page cache",
        runs=runs,
        comparison=comparison,
        packages=common.versions("torch", "deepspeed", "transformers", "mpi4py"),
    )


if __name__ == "__main__":
    main()
