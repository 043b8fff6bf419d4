"""simulate-3072: the real decisions of 3,072 replicas under a virtual clock, on one core: how fast, and how well.

Replicas, nodes, Slurm and links are EMULATED (docs/explanation/simulator.md). Each case is a process of its own;
all but `minute`, which has the full load, run at the reduced rate of their preset. `--nodes` and `--only` are for
trying.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import common
import msgspec
import numpy as np

from exahpc.broker.limits import Limits
from exahpc.deployment.spec import Deployment
from exahpc.lab.simulate.faults import Faults
from exahpc.lab.simulate.presets import NODES, SCENARIOS, reference
from exahpc.lab.simulate.report import Report, Table, report, spread
from exahpc.lab.simulate.run import quiet
from exahpc.lab.simulate.scenario import Request, Scenario, SwitchDown
from exahpc.lab.simulate.world import World

Run = dict[str, Any]
MINUTE, HOUR = 180.0, 60.0  # seconds that they may take
_BURST_SECONDS = 10.0
_MEMORY = {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""A million small objects in huge pages: a tenth less time where the kernel gives some."""


def _simulated(deployment: Deployment, scenario: Scenario) -> tuple[World, Report, Run]:
    wall, cpu = time.perf_counter(), time.process_time()
    with quiet():
        world = World(deployment, scenario)
        faults = Faults(world)
        world.run()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    found = report(world, faults.notes)
    opened = world.outcomes.opened
    return (
        world,
        found,
        {
            "virtual_s": scenario.seconds,
            "requests": opened,
            "wall_s": round(wall, 2),
            "cpu_s": round(cpu, 2),
            "cpu_us_a_request": round(1e6 * cpu / max(1, opened), 1),
            "memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            "requests_a_second": round(opened / (scenario.warm + scenario.seconds), 1),
            "failed": found.all.failed,
            "refused": found.all.refused + found.all.no_room,
            "late": found.all.late,
            "ttft_p50_s": found.all.first_token.p50,
            "ttft_p99_s": found.all.first_token.p99,
            "least_serving": found.least_serving,
            "ejections": found.ejections,
            "rebuilds": found.rebuilds,
        },
    )


def _preset(name: str, nodes: int, **changes: Any) -> tuple[Deployment, Scenario]:
    scenario = msgspec.structs.replace(SCENARIOS[name], **changes)
    return reference(scenario, nodes), scenario


def minute(nodes: int) -> Run:
    """A minute of the whole reference load."""
    _, _, run = _simulated(*_preset("steady", nodes, warm=0.0))
    return {**run, "number": "wall_s", "value": run["wall_s"], "bar": MINUTE, "met": run["wall_s"] <= MINUTE}


def hour(nodes: int) -> Run:
    """An hour of 40 long requests a second, with the beats that jobs/many-nodes.toml sets for so many nodes."""
    deployment, scenario = _preset("long-answers", nodes)
    beats = msgspec.structs.replace(deployment.recovery, beat_seconds=5.0)
    _, _, run = _simulated(msgspec.structs.replace(deployment, recovery=beats), scenario)
    return {**run, "number": "wall_s", "value": run["wall_s"], "bar": HOUR, "met": run["wall_s"] <= HOUR}


def switch(nodes: int) -> Run:
    """A switch with 48 replicas fails: traffic that was not on them, and the pace of rebuilds."""
    world, found, run = _simulated(*_preset("switch", nodes))
    table, at = Table(world.outcomes), world.start + world.scenario.warm
    fault = at + next(f.at for f in world.scenario.fault if isinstance(f, SwitchDown))
    calm = (table.ending == 0) & (table.moved == 0)
    before = spread(table.first[calm & (table.arrived >= at) & (table.arrived < fault)]).p99
    after = spread(table.first[calm & (table.arrived >= fault)]).p99
    deeds = np.array([event.at for event in found.deeds])
    pace = max((int(np.count_nonzero((deeds >= t) & (deeds < t + _BURST_SECONDS))) for t in deeds), default=0)
    limits = Limits.of_fleet(nodes)
    bucket = limits.burst + _BURST_SECONDS / limits.refill_seconds
    return {
        **run,
        "ttft_p99_before_s": before,
        "ttft_p99_after_s": after,
        "rebuilds_in_10_s": pace,
        "bucket_in_10_s": bucket,
        "number": "P99 TTFT of surviving traffic, after / before",
        "value": round(after / before, 3),
        "bar": 1.2,
        "met": after < 1.2 * before and 0 < pace <= bucket,
    }


def fake_alive(nodes: int) -> Run:
    """One replica in twenty looks alive and does nothing."""
    _, found, run = _simulated(*_preset("fake-alive", nodes))
    wanted = int(found.faults[0].what.split()[0])
    out = {e.what.partition(":")[0]: e.at - found.faults[0].at for e in found.decisions if "-> silent" in e.what}
    slowest, late = max(out.values(), default=float("inf")), found.all.late / found.all.requests
    return {
        **run,
        "fake_alive": wanted,
        "out": len(out),
        "late_share": late,
        "number": "seconds until the last was out",
        "value": round(slowest, 2),
        "bar": 13.0,
        "met": len(out) == wanted and slowest <= 13.0 and late < 0.001,
    }


def long_prompts(nodes: int) -> Run:
    """Two requests in a hundred have a prompt of 32k tokens: the short ones with and without them."""
    deployment, scenario = _preset("long-prompts", nodes)
    _, mixed, run = _simulated(deployment, scenario)
    arrivals = scenario.arrivals
    fewer = msgspec.structs.replace(arrivals, mix=(Request(),), rate_per_replica=arrivals.rate_per_replica * 0.98)
    _, plain, _ = _simulated(deployment, msgspec.structs.replace(scenario, arrivals=fewer))
    ratio = mixed.short.first_token.p99 / plain.short.first_token.p99
    return {
        **run,
        "short_ttft_p99_s": mixed.short.first_token.p99,
        "without_s": plain.short.first_token.p99,
        "long_ttft_p99_s": mixed.long.first_token.p99,
        "number": "P99 TTFT of short requests, with long ones / without",
        "value": round(ratio, 3),
        "bar": 1.2,
        "met": ratio < 1.2,
    }


def rollout(nodes: int) -> Run:
    """A new version takes over under load."""
    _, found, run = _simulated(*_preset("rollout", nodes))
    bad = found.all.requests - found.all.done
    ended = [event.at for event in found.decisions if " is done:" in event.what]
    return {
        **run,
        "done_after_s": ended[0] - found.faults[0].at if ended else None,
        "number": "requests that failed",
        "value": bad,
        "bar": 0,
        "met": bad == 0 and bool(ended),
    }


def bad_version(nodes: int) -> Run:
    """A new version that fails at three requests in ten."""
    _, found, run = _simulated(*_preset("bad-version", nodes))
    met = found.versions.get("v2", 0) / found.all.requests
    back = [event.at for event in found.decisions if " is reverting:" in event.what]
    return {
        **run,
        "back_after_s": back[0] - found.faults[0].at if back else None,
        "number": "share of requests that met it",
        "value": round(met, 5),
        "bar": 0.02,
        "met": met < 0.02 and bool(back),
    }


def walltime(nodes: int) -> Run:
    """All jobs end within ten minutes."""
    _, found, run = _simulated(*_preset("walltime", nodes))
    routed = min(window.routed for window in found.windows)
    return {
        **run,
        "least_routed": routed,
        "queue": msgspec.to_builtins(found.scenario.machine.queue),
        "spare_nodes": found.scenario.machine.spare_nodes,
        "number": "least share of the replicas that could serve",
        "value": found.least_serving,
        "bar": 0.95,
        "met": min(routed, found.least_serving) >= 0.95,
    }


CASES: dict[str, Callable[[int], Run]] = {
    "minute": minute,
    "hour": hour,
    "switch": switch,
    "fake-alive": fake_alive,
    "long-prompts": long_prompts,
    "rollout": rollout,
    "bad-version": bad_version,
    "walltime": walltime,
}


def _apart(case: str, nodes: int) -> Run:
    """In a process of its own, on one core."""
    command = [sys.executable, __file__, "--case", case, "--nodes", str(nodes)]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **_MEMORY})
    run: Run = json.loads(found.stdout)
    verdict = "met" if run["met"] else "MISSED"
    took = f"{run['wall_s']} s, {run['cpu_s']} s of CPU"
    print(f"{case:13}{run['number']}: {run['value']} (bar {run['bar']}, {verdict}), {took}", flush=True)
    return {"side": "exahpc", "case": case, **run}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        print(json.dumps(CASES[given.case](given.nodes)))
        return
    runs = [_apart(case, given.nodes) for case in given.only]
    if given.nodes != NODES or set(given.only) != set(CASES):
        print("a part only: nothing is written")
        return
    common.write(
        "simulate-3072",
        what="the decision code of 3,072 replicas under a virtual clock, one core",
        runs=runs,
        comparison={run["case"]: {key: run[key] for key in ("number", "value", "bar", "met")} for run in runs},
        packages=common.versions("msgspec", "numpy"),
        notes=(
            "EMULATED: replicas follow a latency model; nodes, Slurm and links are simulated. Entries, broker and "
            "agents decide with the code that runs in production.",
            "minute: 110 requests/s a node; the others at the rates given as requests_a_second.",
            "hour: beats every 5 s, as jobs/many-nodes.toml has them; the others every 2 s.",
        ),
    )


if __name__ == "__main__":
    main()
