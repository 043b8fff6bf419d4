"""`exahpc bench` against NVIDIA's aiperf: both measure the same endpoint over emulated engines, in turn.

    python bench/aiperf.py [--rate 5] [--seconds 30] [--runs 3] [--smoke]

Broker, entry and agent are real; replicas compute nothing, so that times are the same for both. aiperf runs
unchanged, in an environment of its own (rivals/aiperf.txt). Writes bench/results/aiperf.json; about six minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import common
from rival import environment
from stand import KEY, Stand, stand

from exahpc.lab.emulated.label import LABEL
from exahpc.launch import place

MOST = 0.03
"""By how much both may differ, as a share."""
FIGURES = {
    "requests_per_s": "answers a second",
    "tokens_per_s": "tokens a second",
    "first_token_ms": "first token, P50",
    "between_ms": "between tokens, P50",
    "whole_ms": "whole answer, P50",
}
PROMPT, NEW = 32, 64


def ours(found: Stand, rate: float, seconds: float) -> dict[str, float]:
    """`exahpc bench` as a user runs it."""
    key = found.home / "key"
    key.write_text(KEY)
    key.chmod(0o600)
    command = [sys.executable, "-m", "exahpc.cli", "bench", "--url", url(found), "--key-file", str(key)]
    load = [
        "--rate",
        str(rate),
        "--arrivals",
        "fixed",
        "--seconds",
        str(seconds),
        "--ramp",
        "5",
        "--chat",
        "--json",
    ]
    lengths = ["--prompt", str(PROMPT), "--new", str(NEW), "--ignore-eos"]
    out = subprocess.run([*command, *load, *lengths], check=True, text=True, stdout=subprocess.PIPE).stdout
    told = json.loads(out)
    if told["ok"] != told["requests"]:
        raise SystemExit(f"not every request was answered: {told['errors']}")
    return {
        "requests_per_s": told["drained"]["requests_per_second"],  # as aiperf counts
        "tokens_per_s": told["drained"]["tokens_per_second"],
        "first_token_ms": 1e3 * told["ttft"]["p50"],
        "between_ms": 1e3 * told["tbt"]["p50"],
        "whole_ms": 1e3 * told["e2e"]["p50"],
        "client_busy": told["client"]["busy"],
    }


def theirs(python: Path, found: Stand, rate: float, seconds: float) -> dict[str, float]:
    """`aiperf profile` as its manual says."""
    with tempfile.TemporaryDirectory() as into:
        command = [
            str(python.parent / "aiperf"),
            "profile",
            "--model",
            LABEL,
            "--url",
            url(found).removesuffix("/v1"),
        ]
        kind = ["--endpoint-type", "chat", "--streaming", "--api-key", KEY, "--use-server-token-count"]
        load = ["--request-rate", str(rate), "--arrival-pattern", "constant", "--benchmark-duration", str(seconds)]
        load += ["--warmup-duration", "5"]
        lengths = ["--isl", str(PROMPT), "--isl-stddev", "0", "--osl", str(NEW), "--osl-stddev", "0"]
        more = ["--extra-inputs", "ignore_eos:true", "--tokenizer", str(place.cache() / "smollm2"), "--ui", "none"]
        more += ["--num-dataset-entries", "100"]
        few = ["--workers-max", "2", "--record-processors", "1", "--no-gpu-telemetry", "--no-server-metrics"]
        argv = [*command, *kind, *load, *lengths, *more, *few, "--artifact-dir", into]
        done = subprocess.run(argv, env=_without_hub(), text=True, capture_output=True)
        files = sorted(Path(into).rglob("profile_export_aiperf.json"))
        if done.returncode or not files:
            raise SystemExit(f"aiperf ended with code {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")
        told = json.loads(files[0].read_text())
    return {
        "requests_per_s": told["request_throughput"]["avg"],
        "tokens_per_s": told["output_token_throughput"]["avg"],
        "first_token_ms": told["time_to_first_token"]["p50"],
        "between_ms": told["inter_token_latency"]["p50"],
        "whole_ms": told["request_latency"]["p50"],
    }


def _without_hub() -> dict[str, str]:
    """The tokenizer lies here. Told that it is offline, aiperf would take its path for a name; told nothing, it
    would wait for an answer of the hub."""
    kept = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    return kept | {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_ETAG_TIMEOUT": "1"}


def url(found: Stand) -> str:
    endpoint = found.folder.endpoint()
    assert endpoint is not None
    return endpoint.url


@click.command()
@click.option("--rate", default=5.0, show_default=True, help="Requests a second, evenly spaced.")
@click.option("--seconds", default=30.0, show_default=True, help="Of each run.")
@click.option("--runs", default=3, show_default=True, help="Of each side, in turn.")
@click.option("--smoke", is_flag=True, help="Print only; the machine may be busy.")
def main(rate: float, seconds: float, runs: int, smoke: bool) -> None:
    """Compare the two clients."""
    python = environment("aiperf")
    made: list[dict[str, Any]] = []
    with stand(tasks=1, per_task=2, sequences=16) as found:
        found.head()
        found.agents()
        found.until("all replicas", lambda: found.ready() == found.replicas)
        for _ in range(runs):
            for side, figures in (
                ("exahpc", lambda: ours(found, rate, seconds)),
                ("aiperf", lambda: theirs(python, found, rate, seconds)),
            ):
                one = {key: round(value, 4) for key, value in figures().items()}
                print(side, one, flush=True)
                made += [{"side": side, "case": case, **one} for case in FIGURES.values()]
    comparison = common.compare(made, "exahpc", "aiperf", {case: key for key, case in FIGURES.items()})
    common.show("aiperf", comparison)
    worst = max(abs(row["ratio"] - 1) for row in comparison.values())
    print(f"at most {worst:.1%} apart (bar: {MOST:.0%})")
    if not smoke:
        common.write(
            "aiperf",
            what=f"two load clients on one endpoint: {rate:g} requests a second, streamed chats of {NEW} tokens",
            runs=[run for run in made if run["case"] == FIGURES["requests_per_s"]],
            comparison=comparison,
            packages=common.versions("aiohttp") | {"aiperf": version(python)},
            notes=(
                "evenly spaced requests: in a closed loop the clients of one of them would march in step",
                "EMULATED: replicas compute nothing; broker, entry, agent and links are real",
                "aiperf runs unchanged; tokens are counted from the answers' usage on both sides",
                "rates are those with the drain, as aiperf counts them",
                "clients and servers share the cores of this machine",
            ),
        )
    sys.exit(worst > MOST)


def version(python: Path) -> str:
    """Of aiperf in its environment."""
    for found in metadata.distributions(path=[str(next(python.parents[1].glob("lib/python*/site-packages")))]):
        if found.name == "aiperf":
            return found.version
    return "missing"


if __name__ == "__main__":
    main()
