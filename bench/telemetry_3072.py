"""What telemetry of 3,072 replicas costs: CPU share of broker and entry with everything on, CPU time of a request.

Real broker and entry, 256 emulated agents over real sockets that beat every two seconds and push rollups every
ten. Somebody watches: /metrics every five seconds, in turn with the detail of one node's replicas, and the fleet's
figures and map every two, as a dashboard asks for them. "busy": every replica has news in every beat and two
requests a second in the rollups. History and alerts are on.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click
import common
import msgspec
from stand import Stand, share_medians, shares, stand

from exahpc.telemetry.meters import AgentMeter, EntryMeter
from exahpc.wire import link
from exahpc.wire import messages as m

PER_TASK = 12
FIGURES_SECONDS, METRICS_SECONDS = 2.0, 5.0
SLOW = {"base_seconds": 2.0, "each_seconds": 0.0, "prompt_seconds": 0.0, "prompt_rate": 1e12}
BEAT_SECONDS = 2.0
BAR = 0.3
_TIMES = 200_000


def measure(case: str, replicas: int, seconds: float, processes: int) -> dict[str, Any]:
    """One run."""
    with stand(tasks=replicas // PER_TASK, more=f"[recovery]\nbeat_seconds = {BEAT_SECONDS}") as found:
        broker, entry = found.head()
        busy = ("--busy",) if case == "busy" else ()
        found.fleet(processes, "--load-seconds", 0, "--latency", json.dumps(SLOW), *busy)
        found.until("all replicas", lambda: found.ready() == replicas, every=0.5)
        time.sleep(12.0)  # what the start left behind, and a first rollup of everybody
        seen = _Watcher(found, replicas)
        chores = [(FIGURES_SECONDS, seen.figures), (METRICS_SECONDS, seen.metrics)]
        shared = shares({"broker": broker, "entry": entry}, seconds, chores)
        return {
            "side": "exahpc",
            "case": case,
            **shared,
            **seen.bytes,
            "history_bytes": sum(file.stat().st_size for file in _history(found.folder.path)),
        }


class _Watcher:
    """Asks as a scraper and a dashboard would. bytes: size of the last answers."""

    def __init__(self, found: Stand, replicas: int) -> None:
        head = found.folder.head()
        assert head is not None
        self._stand, self._replicas, self._address = found, replicas, head.address
        self._scrapes = 0
        self.bytes: dict[str, int] = {}

    def figures(self) -> None:
        for name, query in (("figures", m.FiguresQuery()), ("map", m.MapQuery())):
            answer = link.ask(self._stand.folder.fleet_key(), self._address, query, m.BrokerToClient, 60.0)
            self.bytes[f"{name}_bytes"] = len(msgspec.msgpack.encode(answer))
            if name == "figures":
                assert answer.rows[0].ready == self._replicas, answer.rows[0]

    def metrics(self) -> None:
        detail = f"?detail=replica&node=emulated-{self._scrapes}" if self._scrapes % 2 else ""
        body = self._stand.get(f"/metrics{detail}")
        if not detail:
            self.bytes["page_bytes"] = len(body)
        self._scrapes += 1


def _history(folder: Path) -> list[Path]:
    return list((folder / "history").rglob("*.h5"))


def request() -> dict[str, Any]:
    """CPU time that measuring adds to one request: in its entry and its agent, as they call the meters."""
    entry, agent = EntryMeter(), AgentMeter()
    before = time.process_time()
    for number in range(_TIMES):
        seconds = 0.01 + number / _TIMES
        entry.queue.seconds(0.0)
        entry.ttft.seconds(seconds)
        entry.done(seconds)
        agent.queue.seconds(0.0)
        agent.ttft.seconds(seconds)
        agent.tbt.seconds(seconds, 64)
        agent.ended(seconds, 100, 64)
    micro = (time.process_time() - before) / _TIMES * 1e6
    return {"side": "exahpc", "case": "request", "microseconds": round(micro, 2)}


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
        runs.append(request())
    comparison = {case: share_medians(runs, case) | {"bar": BAR} for case in ("idle", "busy")}
    comparison["request"] = {
        "number": "microseconds", "exahpc": common.median(runs, "exahpc", "request", "microseconds")
    }  # fmt: skip
    common.write(
        "telemetry-3072",
        what=f"CPU share of broker and entry with telemetry of {replicas} replicas, and CPU time of one request",
        runs=runs,
        comparison=comparison,
        packages=common.versions("exahpc", "uvloop", "pyzmq", "msgspec", "prometheus-client", "h5py"),
        notes=(
            "replicas and agents are EMULATED, and so is what they measured; broker, entry, links, messages, "
            "history and alerts are the real ones",
            f"agents beat every {BEAT_SECONDS:g} s; figures are asked every {FIGURES_SECONDS:g} s, /metrics every "
            f"{METRICS_SECONDS:g} s, every other time with the replicas of a node",
            "request: what measuring costs one streamed request in entry and agent; a token costs nothing",
        ),
    )


if __name__ == "__main__":
    main()
