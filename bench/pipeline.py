"""Decode tokens/s of a two-stage pipeline on two cores against one rank on one core, and how idle its ranks are.

    python bench/pipeline.py [--micro 32] [--rounds 5] [--new 96] [--smoke]        (about 2 minutes)

Two micro-batches of `micro` sequences are in flight in the pipeline; the single rank runs one. Both are whole
replicas behind their sockets, up at the same time and asked in turn; an idle one sleeps. Writes
bench/results/pipeline.json.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import click
import common
import replica

from exahpc.launch import place

ONE, TWO = "one rank, one core", "two stages, two cores"
PROMPT = 32


@click.command()
@click.option("--model", type=click.Path(exists=True, path_type=Path), default=place.cache() / "smollm2")
@click.option("--micro", default=32, show_default=True, help="Sequences of a micro-batch.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--new", default=96, show_default=True, help="Tokens of each sequence.")
@click.option("--smoke", is_flag=True, help="Print only; the machine may be busy.")
def main(model: Path, micro: int, rounds: int, new: int, smoke: bool) -> None:
    """Decode tokens/s of PP = 2 on two cores against one rank on one."""
    model = model.resolve()
    runs: list[dict[str, Any]] = []
    case = f"{micro} sequences a micro-batch"
    with (
        replica.running(model, "0,1", sequences=2 * micro, pipeline_parallel=2) as two,
        replica.running(model, "0", sequences=micro) as one,
    ):
        for number in range(rounds + 1):  # the first warms up
            for side, at, count in ((TWO, two, 2 * micro), (ONE, one, micro)):
                found = at.decode(replica.prompts(model, count, PROMPT, number), new)
                if number:
                    numbers = {"tokens_per_s": found.tokens_per_s, "step_ms": found.step_ms}
                    runs.append({"side": side, "case": case, **numbers, "idle": found.idle})
    comparison = common.compare(runs, TWO, ONE, {case: "tokens_per_s"})
    told = [run["idle"] for run in runs if run["side"] == TWO and run["idle"]]
    idle = [round(statistics.median(shares), 3) for shares in zip(*told, strict=True)]
    words = "idle share of each stage: " + ", ".join(f"{share:.1%}" for share in idle)
    if smoke:
        click.echo(f"{comparison}\n{words}")
        return
    common.write(
        "pipeline",
        what=f"decode tokens/s of two pipeline stages against one rank, bfloat16, {micro} sequences a micro-batch",
        runs=runs,
        comparison=comparison,
        packages=common.versions("torch", "deepspeed", "mpi4py"),
        notes=(words, "two micro-batches in flight; layers are split by cost, the output layer included"),
    )


if __name__ == "__main__":
    main()
