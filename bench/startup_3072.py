"""How long until 3,072 replicas on 256 agents serve, and how that grows from 384.

Ours: real broker, real entry, 256 emulated agents of 12 replicas over real CURVE sockets; the clock runs from the
start of the agents' processes until the entry would route to all replicas and `status` says so. Replicas load
in no time. Against it, what a controller without agents does: each replica registers by itself with one HTTP
request, and after each the whole table goes to the proxy.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import common
from stand import cpu_seconds, stand

HERE = Path(__file__).resolve().parent
PER_TASK = 12
NAIVE = "register one by one"


def ours(replicas: int, processes: int) -> dict[str, Any]:
    """One run."""
    with stand(tasks=replicas // PER_TASK) as found:
        broker, entry = found.head()
        before = broker.cpu(), entry.cpu()
        start = time.monotonic()
        fleet = found.fleet(processes, "--load-seconds", 0)
        found.until("the entry's table", lambda: found.ready() == replicas, every=0.1)
        routed = time.monotonic() - start
        found.until("status", lambda: found.status().ready == replicas, every=0.1)
        told = time.monotonic() - start
        return {
            "side": "exahpc",
            "case": f"{replicas} replicas",
            "seconds": round(told, 2),
            "routed_seconds": round(routed, 2),
            "broker_cpu_seconds": round(broker.cpu() - before[0], 2),
            "entry_cpu_seconds": round(entry.cpu() - before[1], 2),
            "emulated_cpu_seconds": round(sum(process.cpu() for process in fleet), 2),
        }


def naive(replicas: int) -> dict[str, Any]:
    """One run of the other way: registry, proxy and clients in three processes."""
    program = [sys.executable, str(HERE / "naive_registry.py")]
    registry = subprocess.Popen([*program, "registry"], stdout=subprocess.PIPE, text=True)
    assert registry.stdout is not None
    port = registry.stdout.readline().strip()
    proxy = subprocess.Popen([*program, "proxy", port, str(replicas)], stdout=subprocess.PIPE, text=True)
    assert proxy.stdout is not None
    try:
        proxy.stdout.readline()  # it listens
        start = time.monotonic()
        clients = subprocess.Popen([*program, "replicas", port, str(replicas)])
        proxy.stdout.readline()  # it knows them all
        seconds = time.monotonic() - start
        clients.wait()
        cpu = cpu_seconds(registry.pid), cpu_seconds(proxy.pid)
    finally:
        registry.kill()
        proxy.kill()
        registry.wait()
        proxy.wait()
    return {
        "side": NAIVE,
        "case": f"{replicas} replicas",
        "seconds": round(seconds, 2),
        "broker_cpu_seconds": round(cpu[0], 2),
        "entry_cpu_seconds": round(cpu[1], 2),
    }


@click.command()
@click.option("--repeats", default=3)
@click.option("--processes", default=2, help="Processes that the emulated agents share.")
def main(repeats: int, processes: int) -> None:
    runs: list[dict[str, Any]] = []
    for replicas in (384, 1536, 3072):
        for repeat in range(repeats):
            for run in (ours, naive) if repeat % 2 == 0 else (naive, ours):
                runs.append(ours(replicas, processes) if run is ours else naive(replicas))
                print(runs[-1], flush=True)
    cases = dict.fromkeys((run["case"] for run in runs), "seconds")
    comparison = common.compare(runs, "exahpc", NAIVE, cases)
    first, last = (comparison[f"{n} replicas"] for n in (384, 3072))
    comparison["growth from 384 to 3072 (8 is linear)"] = {
        "number": "times as long",
        "exahpc": round(last["exahpc"] / first["exahpc"], 2),
        NAIVE: round(last[NAIVE] / first[NAIVE], 2),
    }
    common.write(
        "startup-3072",
        what="seconds until all replicas are routed to and `status` says ready",
        runs=runs,
        comparison=comparison,
        packages=common.versions("exahpc", "uvloop", "pyzmq", "msgspec", "httptools"),
        notes=(
            "replicas are EMULATED and load in no time; agents are emulated and share processes, all links and "
            "messages are the real ones; the time includes the start of the agents' interpreters",
            f'"{NAIVE}": a stand-in written for this comparison, without encryption, TLS or keys',
            "published, not measured here: ExaServe 1,857 s and 551.7 s to READY at 3,072 null replicas on Aurora",
        ),
    )


if __name__ == "__main__":
    main()
