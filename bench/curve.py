"""Concurrency, memory and latency of a deployment on this machine, as a user measures it: `exahpc curve`.

    python bench/curve.py [--model FOLDER] [--concurrency 1,2,4,8,16,32,64] [--seconds 20] [--smoke]

Starts one replica of one rank with the local launcher, runs the command against its endpoint, and ends it. Writes
bench/results/curve.json and docs/reference/curve.svg; about four minutes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import common
import msgspec

from exahpc.lab import report
from exahpc.lab.curve import Curve
from exahpc.launch import place

TOML = """
name = "curve"
[model]
path = "{model}"
context = 2048
[[pool]]
name = "a"
replicas = 1
max_sequences = 32
[launcher]
kind = "local"
"""
COLUMNS = {
    "tokens_per_s": "tokens/s",
    "first_token_p50_ms": "first token P50, ms",
    "first_token_p99_ms": "first token P99, ms",
    "between_p50_ms": "between tokens P50, ms",
    "between_p99_ms": "between tokens P99, ms",
    "kv_tokens": "KV cache, tokens",
    "memory_mib": "memory, MiB",
}


def measure(model: Path, arguments: list[str], into: Path) -> None:
    """`exahpc curve` on a deployment of its own; its files lie in `into` then."""
    with tempfile.TemporaryDirectory(prefix="exahpc-curve-") as home:
        env = os.environ | {"EXAHPC_HOME": home, "DS_ACCELERATOR": "cpu"}

        def exahpc(*argv: str) -> None:
            subprocess.run([sys.executable, "-m", "exahpc.cli", *argv], env=env, check=True)

        toml = Path(home) / "curve.toml"
        toml.write_text(TOML.format(model=model.absolute()))
        try:
            exahpc("up", str(toml), "--wait")
            exahpc("curve", "curve", *arguments, "--output", str(into))
        finally:
            exahpc("down", "curve")


@click.command()
@click.option("--model", type=click.Path(exists=True, path_type=Path), default=place.cache() / "smollm2")
@click.option("--concurrency", default="1,2,4,8,16,32,64", show_default=True)
@click.option("--seconds", default=20.0, show_default=True, help="Of each level.")
@click.option("--smoke", is_flag=True, help="Print only; the machine may be busy.")
def main(model: Path, concurrency: str, seconds: float, smoke: bool) -> None:
    """The curve of one replica on this machine."""
    with tempfile.TemporaryDirectory() as temporary:
        into = Path(temporary)
        measure(model, ["--concurrency", concurrency, "--seconds", str(seconds)], into)
        found = msgspec.json.decode((into / "curve.json").read_bytes(), type=Curve)
        if smoke:
            return
        rows = {f"{level.concurrency} at once": report.row(found, level) for level in found.levels}
        comparison: dict[str, dict[str, Any]] = {
            case: {"number": ""} | {title: row[key] for key, title in COLUMNS.items() if row[key] is not None}
            for case, row in rows.items()
        }
        knee = "no knee" if found.knee is None else f"the knee is at {found.knee} requests at once"
        common.write(
            "curve",
            what=f"one replica, one rank, {model.name} in bfloat16, through the endpoint",
            runs=[{"side": "exahpc", "case": case, **row} for case, row in rows.items()],
            comparison=comparison,
            packages=common.versions("torch", "transformers", "deepspeed", "httpx"),
            notes=(
                f"{knee}: see docs/howto/curve.md for its definition",
                f"prompts of {found.prompt} tokens, answers of about {found.new}, {seconds:g} s a level",
                "a real engine; clients, entry, broker and agent share the machine's cores with it",
            ),
        )
        shutil.copy(into / "curve.svg", common.ROOT / "docs" / "reference" / "curve.svg")


if __name__ == "__main__":
    main()
