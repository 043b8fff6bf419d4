"""What health and metrics of 3,072 idle replicas cost: CPU share of broker and entry over a minute.

Real broker and entry, 256 emulated agents that beat every two seconds over real sockets. Somebody watches:
`status` every two seconds and /metrics every five, as `exahpc status --watch` and a scraper would. A second case
says what the beats of a fleet under load cost the broker: every replica has news in every beat.
"""

from __future__ import annotations

import json
import time
from typing import Any

import click
import common
from stand import share_medians, shares, stand

PER_TASK = 12
STATUS_SECONDS, METRICS_SECONDS = 2.0, 5.0
SLOW = {"base_seconds": 2.0, "each_seconds": 0.0, "prompt_seconds": 0.0, "prompt_rate": 1e12}
BEAT_SECONDS = 2.0


def measure(case: str, replicas: int, seconds: float, processes: int) -> dict[str, Any]:
    """One run. case "busy": every replica tells news in every beat."""
    with stand(tasks=replicas // PER_TASK, more=f"[recovery]\nbeat_seconds = {BEAT_SECONDS}") as found:
        broker, entry = found.head()
        busy = ("--busy",) if case == "busy" else ()
        found.fleet(processes, "--load-seconds", 0, "--latency", json.dumps(SLOW), *busy)
        found.until("all replicas", lambda: found.ready() == replicas, every=0.2)
        time.sleep(5.0)  # what the start left behind
        ages: list[float] = []
        shared = shares(
            {"broker": broker, "entry": entry},
            seconds,
            [
                (STATUS_SECONDS, lambda: ages.append(max(agent.beat_age for agent in found.status().agents))),
                (METRICS_SECONDS, lambda: found.get("/metrics")),
            ],
        )
        return {
            "side": "exahpc",
            "case": case,
            **shared,
            "oldest_beat_seconds": round(max(ages), 2),
            "agents_lost": (found.home / "broker.log").read_text().count("is away"),
        }


@click.command()
@click.option("--replicas", default=3072)
@click.option("--seconds", default=60.0)
@click.option("--repeats", default=3)
@click.option("--processes", default=2, help="Processes that the emulated agents share.")
def main(replicas: int, seconds: float, repeats: int, processes: int) -> None:
    runs = []
    for _ in range(repeats):
        for case in ("idle", "busy"):
            runs.append(measure(case, replicas, seconds, processes))
            print(runs[-1], flush=True)
    comparison = {case: share_medians(runs, case) for case in ("idle", "busy")}
    common.write(
        "idle-3072",
        what=f"CPU share of broker and entry for health and metrics of {replicas} replicas",
        runs=runs,
        comparison=comparison,
        packages=common.versions("exahpc", "uvloop", "pyzmq", "msgspec"),
        notes=(
            "replicas and agents are EMULATED; broker, entry, links and messages are the real ones",
            f"agents beat every {BEAT_SECONDS:g} s; status is asked every {STATUS_SECONDS:g} s, /metrics every "
            f"{METRICS_SECONDS:g} s",
            "busy: no requests either, but every replica has news in every beat, as under load",
            "published, not measured here: llm-d's picker takes 7.5 cores to scrape 100 idle pods",
        ),
    )


if __name__ == "__main__":
    main()
