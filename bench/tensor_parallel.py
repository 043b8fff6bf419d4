"""Decode tokens/s of two tensor-parallel ranks on two cores against one rank on one core.

    python bench/tensor_parallel.py [--batch 32] [--rounds 5] [--new 48] [--smoke]        (about 3 minutes)

Both are whole replicas behind their sockets, up at the same time and asked in turn; an idle one sleeps. The random
model has SmolLM2-135M's size and heads that split evenly; SmolLM2's own (9 query, 3 key/value heads) do not, so
one rank has 54 % of its work. Writes bench/results/tensor-parallel.json.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

import click
import common
import replica

from exahpc.launch import place

ONE, TWO = "one rank, one core", "two ranks, two cores"
PROMPT = 32


@click.command()
@click.option("--model", type=click.Path(exists=True, path_type=Path), default=place.cache() / "smollm2")
@click.option("--batch", default=32, show_default=True)
@click.option("--rounds", default=5, show_default=True)
@click.option("--new", default=48, show_default=True, help="Tokens of each sequence.")
@click.option("--smoke", is_flag=True, help="Print only; the machine may be busy.")
def main(model: Path, batch: int, rounds: int, new: int, smoke: bool) -> None:
    """Decode tokens/s of TP = 2 on two cores against one rank on one."""
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as where:
        models = {"even heads": replica.even_heads(Path(where) / "even"), "SmolLM2": model.resolve()}
        for case, folder in models.items():
            with contextlib.ExitStack() as stack:
                sides = {
                    TWO: stack.enter_context(replica.running(folder, "0,1", sequences=batch, tensor_parallel=2)),
                    ONE: stack.enter_context(replica.running(folder, "0", sequences=batch)),
                }
                for number in range(rounds + 1):  # the first warms up
                    for side, one in sides.items():
                        found = one.decode(replica.prompts(folder, batch, PROMPT, number), new)
                        if number:
                            numbers = {"tokens_per_s": found.tokens_per_s, "step_ms": found.step_ms}
                            runs.append({"side": side, "case": case, **numbers, "idle": found.idle})
    comparison = common.compare(runs, TWO, ONE, dict.fromkeys(models, "tokens_per_s"))
    if smoke:
        click.echo(comparison)
        return
    common.write(
        "tensor-parallel",
        what=f"decode tokens/s of two tensor-parallel ranks against one, bfloat16, batch {batch}",
        runs=runs,
        comparison=comparison,
        packages=common.versions("torch", "deepspeed", "mpi4py"),
        notes=(
            "even heads: random weights, SmolLM2-135M's size, 8 query and 4 key/value heads",
            "SmolLM2: 9 and 3 heads split 6 + 3 and 2 + 1, so the fuller rank has 54 % of the work",
        ),
    )


if __name__ == "__main__":
    main()
