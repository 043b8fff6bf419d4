"""The same ladder on a cluster and in simulation: 1, 2 and 4 nodes, emulated replicas, `exahpc ladder` both times.

    python bench/ladder.py [--nodes 1,2,4] [--seconds 20] [--smoke]

Starts a development cluster (real Slurm, as root), whose tasks run real agents over emulated replicas; client,
broker, entry and all nodes share the cores of this machine. Writes bench/results/ladder.json; about four
minutes.
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

from exahpc.lab.emulated.label import LABEL
from exahpc.lab.ladder.values import Ladder
from exahpc.launch import place

DEVCLUSTER = common.ROOT / "slurm" / "devcluster" / "devcluster"
MOST = 0.10
"""By how much both may differ, as a share."""
PYTHON = """#!/bin/bash
# Real agents over EMULATED replicas: the rest of the deployment is as it is.
arguments=()
for word in "$@"; do
    [ "$word" = exahpc.agent ] && word=exahpc.lab.emulated.agent
    arguments+=("$word")
done
export PYTHONPATH={root}
exec {python} "${{arguments[@]}}"
"""
TOML = """
name = "rungs"
[model]
path = "{model}"
name = "{label}-smollm2"
context = 2048
[slurm]
partition = "main"
time = "1:00:00"
[[pool]]
name = "a"
replicas_per_task = 2
replicas = 2
max_sequences = 4
[walltime]
successors = "off"
[head]
placement = "local"
entries = 1
interface = "{bridge}"
[launcher]
python = "{python}"
"""


def climb(home: Path, toml: Path, into: Path, arguments: list[str], conf: str = "") -> Ladder:
    """`exahpc ladder`, and what it wrote."""
    env = os.environ | {"EXAHPC_HOME": str(home), "DS_ACCELERATOR": "cpu"}
    argv = [sys.executable, "-m", "exahpc.cli", "ladder", str(toml), "-o", str(into), *arguments]
    subprocess.run(argv, env=env | ({"SLURM_CONF": conf} if conf else {}), check=True)
    return msgspec.json.decode((into / "ladder.json").read_bytes(), type=Ladder)


def rows(side: str, found: Ladder) -> list[dict[str, Any]]:
    """A run for each step."""
    return [
        {
            "side": side,
            "case": f"{step.nodes} node{'s' * (step.nodes > 1)}",
            "tokens_per_s": round(step.tokens_per_second, 1),
            "tokens_per_s_error": round(step.error, 1),
            "first_token_p50_ms": round(1e3 * step.ttft.p50, 1),
            "between_p50_ms": round(1e3 * step.tbt.p50, 2),
            "whole_p50_ms": round(1e3 * step.e2e.p50, 1),
            "bad": step.bad,
            "requests": step.requests,
        }
        for step in found.steps
    ]


@click.command()
@click.option("--nodes", default="1,2,4", show_default=True)
@click.option("--rate", default=4.0, show_default=True, help="Requests a second and node.")
@click.option("--seconds", default=20.0, show_default=True, help="Of each step.")
@click.option("--cluster", default="rg", show_default=True, help="Name of the development cluster.")
@click.option("--smoke", is_flag=True, help="Print only; the machine may be busy.")
def main(nodes: str, rate: float, seconds: float, cluster: str, smoke: bool) -> None:
    """Compare the two ladders."""
    model = place.cache() / "smollm2"
    if not (model / "tokenizer.json").exists():
        raise SystemExit(f"{model} is missing: run `make model` first (its tokenizer is used)")
    home = Path(tempfile.mkdtemp(prefix="exahpc-ladder-", dir="/var/tmp"))
    python, toml = home / "python", home / "rungs.toml"
    python.write_text(PYTHON.format(root=common.ROOT, python=sys.executable))
    python.chmod(0o700)
    toml.write_text(TOML.format(model=model, label=LABEL, bridge=f"{cluster}-br", python=python))
    load = ["--nodes", nodes, "--rate", str(rate), "--seconds", str(seconds), "--arrivals", "fixed"]
    simulated = climb(home, toml, home / "simulated", [*load, "--simulate"])
    most = max(map(int, nodes.split(",")))
    settings = {"DEVCLUSTER_NAME": cluster, "DEVCLUSTER_NODES": str(most)}

    def devcluster(act: str) -> str:
        env = os.environ | settings
        return subprocess.run(
            [str(DEVCLUSTER), act], env=env, check=True, text=True, stdout=subprocess.PIPE
        ).stdout

    devcluster("up")
    try:
        conf = devcluster("env").partition("SLURM_CONF=")[2].split()[0]
        real = climb(home, toml, home / "cluster", load, conf)
    finally:
        devcluster("down")
    runs = rows("cluster", real) + rows("simulation", simulated)
    cases = dict.fromkeys((run["case"] for run in runs), "tokens_per_s")
    comparison = common.compare(runs, "cluster", "simulation", cases)
    common.show("ladder", comparison)
    for run in runs:
        print(run)
    worst = max(abs(row["ratio"] - 1) for row in comparison.values())
    print(f"at most {worst:.1%} apart (bar: {MOST:.0%})")
    if not smoke:
        common.write(
            "ladder",
            what=f"tokens a second on {nodes} nodes: a development cluster against the simulation of it",
            runs=runs,
            comparison=comparison,
            packages=common.versions("aiohttp", "pyzmq", "msgspec"),
            notes=(
                "EMULATED: replicas compute nothing, on both sides by the same latency model; on the cluster all "
                "else is real (Slurm, agents, broker, entry, links, client), in the simulation by a virtual clock",
                f"two replicas a node, {rate:g} requests a second and node (evenly spaced), prompts of 128 and "
                f"answers of 64 tokens",
                "all nodes, head and client share the cores of this machine",
            ),
        )
    shutil.rmtree(home, ignore_errors=True)
    sys.exit(worst > MOST)


if __name__ == "__main__":
    main()
