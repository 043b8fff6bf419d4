"""What a long prompt does to the sequences that are generating when it arrives.

    python bench/chunked_prefill.py [--model FOLDER] [--chunks 16,64,128] [--rounds 3] [--smoke]

16 sequences generate. Then a prompt of 4,000 tokens arrives. Counted are the times between two tokens of each
sequence, from the arrival to the prompt's first token and in at least 100 iterations, and without the prompt in as
many. Sides: the prompt tokens of one iteration that ranks on processors use, fixed other numbers (--chunks), and
`unchunked`, which computes a prompt in one go. About 10 minutes. Writes bench/results/chunked-prefill.json.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import click
import common
import engine

from exahpc.deployment.shape import ModelShape
from exahpc.launch import place
from exahpc.replica.rank import CPU_CHUNK, far

DECODING, LONG, LEAST, WARM = 16, 4000, 100, 4
NEVER = 1_000_000
"""Tokens of a prompt count alike, wherever they are."""
OURS, QUIET, WHOLE = "exahpc", "no prompt", "unchunked"


def gaps(
    rank: engine.Engine, chunk: int, reach: int, seed: int, long: int, steps: int
) -> tuple[list[float], float]:
    """Seconds between tokens, and from the arrival of a prompt of `long` tokens (0: none) to its first token."""
    rank.clear(budget=chunk + 2 * DECODING, chunk=chunk, far=reach)
    for ids in engine.prompts(DECODING, 32, seed):
        rank.add(ids, 900)
    started: set[int] = set()
    while len(started) < DECODING:
        iteration = rank.step()
        assert iteration is not None
        started |= {number for number, _ in iteration.tokens}
    for _ in range(WARM):
        rank.step()
    arrival = last = time.perf_counter()
    newcomer = rank.add(engine.prompts(1, long, seed + 1)[0], 1) if long else -1
    found: list[float] = []
    first = 0.0
    while len(found) < steps or (long and not first):
        iteration = rank.step()
        assert iteration is not None
        if any(number == newcomer for number, _ in iteration.tokens):
            first = iteration.seconds - arrival
        found.append(iteration.seconds - last)
        last = iteration.seconds
    return found, first


@click.command()
@click.option("--model", type=click.Path(exists=True, path_type=Path), default=place.cache() / "smollm2")
@click.option("--chunks", default="", help="Further sizes to show, by commas.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--long", default=LONG, show_default=True)
@click.option("--core", default=1, show_default=True)
@click.option("--smoke", is_flag=True, help="Print only; the machine may be busy.")
def main(model: Path, chunks: str, rounds: int, long: int, core: int, smoke: bool) -> None:
    """Time between tokens while a long prompt is computed."""
    os.sched_setaffinity(0, {core})
    engine.start()
    rank = engine.Engine(model, sequences=DECODING + 1, context=max(long, 1000) + 100)
    ours = far(ModelShape.of(json.loads((model / "config.json").read_text())), rank.stage.slowness)
    sides = {QUIET: (CPU_CHUNK, ours, 0), OURS: (CPU_CHUNK, ours, long), WHOLE: (long, NEVER, long)}
    sides |= {f"chunk {n}": (int(n), NEVER, long) for n in chunks.split(",") if n}
    runs: list[dict[str, Any]] = []
    case = f"{DECODING} sequences, prompt of {long}"
    for number in range(rounds):
        for side, (chunk, reach, prompt) in sides.items():
            found, first = gaps(rank, chunk, reach, 10 * number, prompt, LEAST)
            found.sort()
            runs.append(
                {
                    "side": side,
                    "case": case,
                    "chunk": chunk,
                    "p99_ms": found[min(len(found) - 1, int(0.99 * len(found)))] * 1e3,
                    "median_ms": statistics.median(found) * 1e3,
                    "longest_ms": found[-1] * 1e3,
                    "prompt_s": first,
                    "iterations": len(found),
                }
            )
            click.echo(str(runs[-1]), err=True)
    comparison = {}
    for side in sides:
        if side != QUIET:
            row = common.compare(runs, side, QUIET, {case: "p99_ms"})[case]
            comparison[f"{case}, {side}, {sides[side][0]} tokens at once"] = row
    if smoke:
        click.echo(comparison)
        return
    packages = common.versions("torch", "transformers", "deepspeed", "mpi4py")
    what = "P99 time between two tokens of sequences that generate, while a long prompt is computed; one core"
    common.write("chunked-prefill", what=what, runs=runs, comparison=comparison, packages=packages)


if __name__ == "__main__":
    main()
