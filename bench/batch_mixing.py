"""What online requests notice of a batch beside them: P99 to the first token and to the end, with it and without.

    python bench/batch_mixing.py [--rounds 3] [--seconds 90] [--rate 0.4] [--smoke]

One real replica of SmolLM2-135M on one core, the whole way: official endpoints, entry, agent, head rank. Online
requests stream and come by chance at `--rate` a second, the same on both sides; their prompts are random words.
Sides alternate, and so does which is first. Beside them `exahpc batch run` works on rows of other lengths. Times
of all rounds of a side are taken together. Writes bench/results/batch-mixing.json; twelve minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import common
import openai

from exahpc.launch import place

sys.path.insert(0, str(common.ROOT))

from tests.live import EXAHPC, Live, until

ALONE, BESIDE, BAR = "alone", "with batch", 1.3
TOML = """
name = "mixing"
[model]
path = "{model}"
name = "smollm2"
context = 2048
[[pool]]
name = "a"
replicas = 1
max_sequences = 8
[head]
entries = 1
[launcher]
kind = "local"
"""
WORDS = ("time", "year", "people", "way", "day", "thing", "world", "life", "hand", "part", "child", "eye", "place")
ROWS = 20_000  # more than can be done
SETTLED = 5.0  # seconds of rows before online requests are counted, and of these before rows are


def words(draw: random.Random, count: int) -> str:
    return " ".join(draw.choices(WORDS, k=count))


def write(path: Path) -> None:
    """Rows of 20 to 200 prompt and 16 to 96 new tokens."""
    draw = random.Random(1)
    with path.open("w") as file:
        for row in range(ROWS):
            body = {"model": "smollm2", "prompt": words(draw, draw.randint(20, 200)), "ignore_eos": True}
            body["max_tokens"] = draw.randint(16, 96)
            line = {"custom_id": f"r{row}", "method": "POST", "url": "/v1/completions", "body": body}
            file.write(json.dumps(line) + "\n")


def done(live: Live, output: Path) -> int:
    """Rows of this batch that are done."""
    found = live.status()
    return sum(batch.ok for batch in found.batches if output.name in batch.folder) if found else 0


@contextlib.contextmanager
def batch(live: Live, source: Path, output: Path) -> Iterator[None]:
    """Rows run, from when the first are done."""
    argv = [*EXAHPC, "batch", "run", str(source), "--deployment", live.name, "-o", str(output)]
    quiet: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    client = subprocess.Popen(argv, env=live.env, **quiet)
    try:
        until("the first rows are done", lambda: done(live, output) > 0, 240, every=0.5)
        yield
    finally:
        live.run("batch", "cancel", str(output), check=False)
        client.wait(120)
        until("no row runs", lambda: live.running() == 0, 120, every=0.5)


async def ask(client: openai.AsyncOpenAI, prompt: str, new: int) -> tuple[float, float]:
    """Seconds to the first token and to the end of one stream."""
    begin = time.perf_counter()
    first = 0.0
    more = {"ignore_eos": True}
    stream = await client.completions.create(
        model="smollm2", prompt=prompt, max_tokens=new, stream=True, temperature=0, extra_body=more
    )
    async for _ in stream:
        first = first or time.perf_counter() - begin
    return first, time.perf_counter() - begin


async def load(live: Live, seconds: float, rate: float, round_: int) -> list[tuple[float, float]]:
    """Of all requests that began within so many seconds; the same ones for both sides of a round."""
    endpoint = live.folder.endpoint()
    assert endpoint is not None
    draw, asked = random.Random(f"online {round_}"), list[asyncio.Task[tuple[float, float]]]()
    loop = asyncio.get_running_loop()
    async with openai.AsyncOpenAI(base_url=endpoint.url, api_key=live.key, max_retries=0, timeout=300) as client:
        await ask(client, "warm", 8)
        due = end = loop.time()
        end += seconds
        while (due := due + draw.expovariate(rate)) < end:
            await asyncio.sleep(max(0.0, due - loop.time()))
            asked.append(loop.create_task(ask(client, words(draw, draw.randint(20, 60)), draw.randint(16, 48))))
        return list(await asyncio.gather(*asked))


def measure(live: Live, side: str, source: Path, round_: int, seconds: float, rate: float) -> dict[str, Any]:
    output = live.home / f"{round_}.h5"
    with batch(live, source, output) if side == BESIDE else contextlib.nullcontext():
        if side == BESIDE:
            time.sleep(SETTLED)
        before, begin = done(live, output), time.monotonic()
        times = asyncio.run(load(live, seconds, rate, round_))
        rows, took = done(live, output) - before, time.monotonic() - begin
    return {
        "side": side,
        "case": f"round {round_}",
        "requests": len(times),
        "first_s": [round(first, 4) for first, _ in times],
        "whole_s": [round(whole, 4) for _, whole in times],
        "rows_per_s": round(rows / took, 3) if side == BESIDE else None,
    }


def rows_alone(live: Live, source: Path, seconds: float) -> dict[str, Any]:
    """Rows a second of a batch that has the replica to itself."""
    output = live.home / "alone.h5"
    with batch(live, source, output):
        time.sleep(SETTLED)
        before, begin = done(live, output), time.monotonic()
        time.sleep(seconds)
        rate = (done(live, output) - before) / (time.monotonic() - begin)
    return {"side": "batch alone", "case": "rows", "rows_per_s": round(rate, 3)}


def p99(times: list[float]) -> float:
    return sorted(times)[min(len(times) - 1, len(times) * 99 // 100)]


def compared(runs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for case, key in (("to the first token", "first_s"), ("to the end", "whole_s")):
        times = {s: [t for run in runs if run["side"] == s for t in run[key]] for s in (ALONE, BESIDE)}
        of = {side: round(p99(times[side]), 4) for side in times}
        found[case] = {"number": "p99_s", **of, "ratio": round(of[BESIDE] / of[ALONE], 3), "bar": BAR}
    rates = [run["rows_per_s"] for run in runs if run["side"] == BESIDE]
    found["rows of the batch"] = {
        "number": "rows_per_s",
        "batch alone": next((run["rows_per_s"] for run in runs if run["case"] == "rows"), None),
        BESIDE: round(sum(rates) / len(rates), 3),
    }
    return found


@click.command()
@click.option("--rounds", default=3, show_default=True)
@click.option("--seconds", default=90.0, show_default=True, help="Of each run.")
@click.option("--rate", default=0.4, show_default=True, help="Online requests a second.")
@click.option("--smoke", is_flag=True, help="Print only; the machine may be busy.")
def main(rounds: int, seconds: float, rate: float, smoke: bool) -> None:
    """Online requests with and without a batch beside them."""
    model = place.cache() / "smollm2"
    if not (model / "model.safetensors").exists():
        raise click.ClickException(f"{model} is missing: run `make model` first")
    home = Path(tempfile.mkdtemp(prefix="exahpc-mixing-"))
    live = Live(home, "mixing")
    runs: list[dict[str, Any]] = []
    try:
        source = home / "rows.jsonl"
        write(source)
        live.up(TOML.format(model=model))
        runs.append(rows_alone(live, source, min(seconds, 60.0)))
        for round_ in range(rounds):
            for side in (ALONE, BESIDE) if round_ % 2 == 0 else (BESIDE, ALONE):
                runs.append(measure(live, side, source, round_, seconds, rate))
                print(f"round {round_}, {side}: {runs[-1]['requests']} requests", flush=True)
    finally:
        live.run("down", live.name, check=False)
        shutil.rmtree(home, ignore_errors=True)
    comparison = compared(runs)
    if smoke:
        common.show("batch-mixing", comparison)
        return
    common.write(
        "batch-mixing",
        what="P99 of online requests of one real replica (SmolLM2-135M) with a batch beside them and without",
        runs=runs,
        comparison=comparison,
        packages=common.versions("torch", "deepspeed", "mpi4py", "openai"),
        notes=(
            f"{rate:g} online requests a second by chance, 20 to 60 words, 16 to 48 tokens, equal on both sides",
            "P99 over the requests of all rounds; rows have 20 to 200 words and 16 to 96 tokens",
            "one replica of one thread; entry, agent, broker and the client share the machine",
        ),
    )


if __name__ == "__main__":
    main()
