"""Requests that share a long prefix, with and without prefix caching.

    python bench/prefix_cache.py [--model FOLDER] [--requests 64] [--prefix 1000] [--rounds 3] [--smoke]

All requests arrive at once: the same first 1,000 tokens (a system prompt, a few-shot header), then 8 to 24 of
their own; each generates 4 tokens. Both sides are the same rank, same weights, same core; a run ends with the last
token. Nothing is remembered from one run to the next. About 10 minutes. Writes bench/results/prefix-cache.json.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import click
import common
import engine

from exahpc.launch import place

OURS, WITHOUT, NEW = "exahpc", "without prefix caching", 4


def run(rank: engine.Engine, requests: list[list[int]], prefix: bool) -> dict[str, float]:
    """Run all requests to their ends."""
    rank.clear(prefix=prefix)
    begin = time.perf_counter()
    for ids in requests:
        rank.add(ids, NEW)
    computed, first = 0, 0.0
    while (iteration := rank.step()) is not None:
        computed += iteration.new
        if iteration.tokens and not first:
            first = iteration.seconds - begin
    seconds = time.perf_counter() - begin
    return {
        "seconds": seconds,
        "requests_per_s": len(requests) / seconds,
        "first_token_s": first,
        "computed_tokens": computed,
    }


@click.command()
@click.option("--model", type=click.Path(exists=True, path_type=Path), default=place.cache() / "smollm2")
@click.option("--requests", default=64, show_default=True)
@click.option("--prefix", default=1000, show_default=True, help="Tokens that all requests share.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--core", default=1, show_default=True)
@click.option("--smoke", is_flag=True, help="Print only; the machine may be busy.")
def main(model: Path, requests: int, prefix: int, rounds: int, core: int, smoke: bool) -> None:
    """Requests that share a long prefix, with and without prefix caching."""
    os.sched_setaffinity(0, {core})
    engine.start()
    rank = engine.Engine(model, sequences=32, context=prefix + 64)
    runs: list[dict[str, Any]] = []
    case = f"{requests} requests, {prefix} shared tokens"
    for number in range(rounds):
        (shared,) = engine.prompts(1, prefix, seed=number)
        tails = engine.prompts(requests, 24, seed=1000 + number)
        asked = [shared + tail[: 8 + i % 17] for i, tail in enumerate(tails)]
        for side, caching in ((OURS, True), (WITHOUT, False)):
            runs.append({"side": side, "case": case, **run(rank, asked, caching)})
            click.echo(f"{side}: {runs[-1]}", err=True)
    comparison = common.compare(runs, OURS, WITHOUT, {case: "requests_per_s"})
    if smoke:
        click.echo(comparison)
        return
    packages = common.versions("torch", "transformers", "deepspeed", "mpi4py")
    what = "requests/s with a shared prefix, one rank on one core; both sides are this engine"
    common.write("prefix-cache", what=what, runs=runs, comparison=comparison, packages=packages)


if __name__ == "__main__":
    main()
