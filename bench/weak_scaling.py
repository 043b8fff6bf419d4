"""The reference load at one, two and four nodes on these cores: what a node's load costs entry, agent and broker.

Each node: a real agent whose relay serves twelve emulated replicas (54 ms to the first token, 24 ms between
tokens, 64 places each), and 110 requests a second by chance, 64 tokens in and 64 out, streamed. One real entry
serves all of them, which is the worst case: entries can run on every node. Client and emulated replicas are
processes apart.
"""

from __future__ import annotations

import time
from typing import Any

import click
import common
from gateway import load
from stand import cpu_seconds, stand

RATE = 110.0
PROMPT_CHARACTERS = 290  # 64 tokens of SmolLM2's vocabulary
NEW_TOKENS = 64
PER_TASK = 12


def measure(nodes: int, seconds: float) -> dict[str, Any]:
    """One run."""
    with stand(tasks=nodes, per_task=PER_TASK) as found:
        broker, entry = found.head()
        agents = found.agents()
        found.until("all replicas", lambda: found.ready() == found.replicas, every=0.2)

        def cpu() -> dict[str, float]:
            hosts = [child for agent in agents for child in agent.children]
            return {
                "entry": entry.cpu(),
                "agent": sum(agent.cpu() for agent in agents),
                "broker": broker.cpu(),
                "emulated": sum(map(cpu_seconds, hosts)),
            }

        before: dict[str, float] = {}
        arguments = ("--rate", str(RATE * nodes), "--poisson", "--prompt", str(PROMPT_CHARACTERS))
        told = load(
            found.port,
            seconds,
            *arguments,
            *("--tokens", str(NEW_TOKENS), "--warm", "4"),
            at_warm=lambda: before.update(cpu(), time=time.monotonic()),
        )
        elapsed = time.monotonic() - before.pop("time")
        after = cpu()
        return {
            "side": "exahpc",
            "case": f"{nodes} nodes",
            "nodes": nodes,
            "offered_per_second": RATE * nodes,
            "answered_per_second": round(told["answers"] / told["seconds"], 1),
            "efficiency": round(told["answers"] / told["seconds"] / (RATE * nodes), 4),
            "errors": told["errors"],
            "first_ms": told["first"],
            "between_ms": told["between"],
            "whole_ms": told["whole"],
            **{f"{part}_cores_a_node": round((after[part] - before[part]) / elapsed / nodes, 4) for part in after},
        }


@click.command()
@click.option("--seconds", default=20.0)
@click.option("--repeats", default=3)
def main(seconds: float, repeats: int) -> None:
    runs = []
    for repeat in range(repeats):
        for nodes in (1, 2, 4)[:: -1 if repeat % 2 else 1]:
            runs.append(measure(nodes, seconds))
            print(runs[-1], flush=True)
    comparison = {}
    for case in dict.fromkeys(sorted(run["case"] for run in runs)):
        parts = {part: common.median(runs, "exahpc", case, f"{part}_cores_a_node") for part in ("entry", "agent")}
        comparison[case] = {
            "number": "cores for one node's load",
            **parts,
            "broker": common.median(runs, "exahpc", case, "broker_cores_a_node"),
            "efficiency": common.median(runs, "exahpc", case, "efficiency"),
        }
    common.write(
        "weak-scaling",
        what="cores that the load of one node takes in entry, agent relay and broker",
        runs=runs,
        comparison=comparison,
        packages=common.versions("exahpc", "uvloop", "pyzmq", "msgspec", "httptools", "tokenizers"),
        notes=(
            "replicas are EMULATED; broker, entry, agents with relay and tokenizer, and all links are real",
            f"a node: {PER_TASK} replicas, {RATE:g} requests/s by chance, 64 tokens in and {NEW_TOKENS} out",
            "one entry for all nodes; client, emulated replicas and the rest share these cores: above what they "
            "hold together the efficiency says more about the machine than about us",
            "docs/explanation/scaling.md goes on from these numbers to 256 nodes",
        ),
    )


if __name__ == "__main__":
    main()
