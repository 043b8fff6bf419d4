"""18,000 streams of two tokens a second at once through one entry process: is anything lost?

The broker, the entry and all links are real; 27 emulated agents hold the replicas. A client process of its own
opens one connection a stream. A run is good when every stream brings all its tokens and no beat is missed: no
agent or entry was given up by the broker, no link was lost.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import common
from stand import KEY, Stand, cpu_seconds, stand

from exahpc.lab.emulated.requests import WORD

HERE = Path(__file__).resolve().parent
LATENCY = {"base_seconds": 0.5, "each_seconds": 0.0, "prompt_seconds": 0.0, "prompt_rate": 1e9}
"""One step of all sequences every half second."""
PER_AGENT = 12 * 64


def lost(found: Stand) -> dict[str, int]:
    """What went wrong, by the logs of broker and entry."""
    broker = (found.home / "broker.log").read_text()
    entry = (found.home / "entry.log").read_text()
    return {
        "agents_lost": broker.count("is away"),
        "links_lost": entry.count("the link to agent"),
        "broker_lost": entry.count("the broker is gone"),
        "requests_failed": entry.count("failed:"),
    }


def measure(streams: int, seconds: float, tokens: int) -> dict[str, Any]:
    """One run: all streams up, then `seconds` of watching."""
    with stand(tasks=-(-streams // int(0.9 * PER_AGENT)), more="[limits]\nmax_waiting = 20000") as found:
        broker, entry = found.head()
        fleet = found.fleet(1, "--latency", json.dumps(LATENCY), "--load-seconds", 0)
        found.until("all replicas", lambda: found.ready() == found.replicas)
        client = subprocess.Popen(
            [
                *(sys.executable, str(HERE / "load.py"), "--port", str(found.port), "--connections", str(streams)),
                *("--seconds", str(seconds), "--tokens", str(tokens), "--warm", "5", "--once", "--pace", "1500"),
                *("--token-bytes", str(len(WORD))),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write(KEY + "\n")
        client.stdin.close()
        if client.stdout.readline().strip() != "warm":
            raise SystemExit("the client failed")
        sides = {"entry": entry.pid, "broker": broker.pid, "client": client.pid, "emulated": fleet[0].pid}
        before = {side: cpu_seconds(pid) for side, pid in sides.items()}
        start, beats = time.monotonic(), []
        while time.monotonic() < start + seconds - 1.0:
            status = found.status()
            beats.append(max(agent.beat_age for agent in status.agents))
            time.sleep(1.0)
        elapsed = time.monotonic() - start
        cores = {
            f"{side}_cores": round((cpu_seconds(pid) - before[side]) / elapsed, 3) for side, pid in sides.items()
        }
        in_flight = found.status().entries[0].in_flight
        told = json.loads(client.stdout.readline())
        client.wait()
        return {
            "side": "exahpc",
            "case": f"{streams} streams",
            "in_flight": in_flight,
            "tokens_per_second": round(told["tokens"] / told["seconds"], 1),
            "wanted_tokens_per_second": streams / LATENCY["base_seconds"],
            "client_errors": told["errors"],
            "streams_open": told["open"],
            "between_ms": told["between"],
            "oldest_beat_seconds": round(max(beats), 2),
            **lost(found),
            **cores,
            "entry_rss_mib": round(entry.rss() / 2**20, 1),
        }


@click.command()
@click.option("--streams", default=18_000)
@click.option("--seconds", default=30.0, help="Time of one run, after all streams are up.")
@click.option("--repeats", default=3)
def main(streams: int, seconds: float, repeats: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    tokens = int(2 * (seconds + 90))  # longer than the run: streams end with it
    runs = []
    for _ in range(repeats):
        runs.append(measure(streams, seconds, tokens))
        print(runs[-1], flush=True)
    case = runs[0]["case"]
    common.write(
        "streams-18k",
        what=f"{streams} streams of 2 tokens/s at once through one entry process",
        runs=runs,
        comparison={
            case: {
                "number": "tokens per s",
                "exahpc": common.median(runs, "exahpc", case, "tokens_per_second"),
                "wanted": runs[0]["wanted_tokens_per_second"],
                "entry cores": common.median(runs, "exahpc", case, "entry_cores"),
                "client cores": common.median(runs, "exahpc", case, "client_cores"),
            }
        },
        packages=common.versions("exahpc", "uvloop", "pyzmq", "msgspec"),
        notes=(
            "engines are EMULATED: fixed text, one step of all sequences every 0.5 s; agents share one process",
            "broker, entry and links are the real ones; the client is a process of its own",
            "a good run has no failed request, no lost agent, link or entry, and no client error",
        ),
    )


if __name__ == "__main__":
    main()
