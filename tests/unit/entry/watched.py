"""An entry before an EMULATED fleet of 3,072 replicas: made-up beats, real figures and links."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import uvloop

from exahpc.telemetry.aggregate import Aggregate
from exahpc.telemetry.chronicle import Chronicle
from exahpc.telemetry.courses import CLIENTS, REPLICAS, TIERS, Row
from exahpc.telemetry.histogram import Histogram
from exahpc.telemetry.map import fleet_map
from exahpc.telemetry.store import Store
from exahpc.telemetry.tally import Seen
from exahpc.wire import link
from exahpc.wire import messages as m
from exahpc.wire.folder import Folder, HeadRecord, runtime_directory, write_atomic
from tests.unit.entry.conftest import KEY, Running

NODES, EACH = 256, 12
TOML = f"""
name = "watched"
[model]
path = "/nowhere"
name = "emulated-70b"
[[pool]]
name = "gpu"
replicas = {NODES * EACH}
replicas_per_task = {EACH}
[head]
entries = 1
[launcher]
kind = "local"
"""
WHERE = {f"emulated-{task:03}": f"leaf-{task // 32}" for task in range(NODES)}
TRIPPED = 5 * EACH + 3
"""Slot of a replica that is tripped."""


def tasks(seed: int = 7) -> list[Seen]:
    """Some tasks lost, loading or of a new version; some replicas ill; load that differs from node to node."""
    draw = random.Random(seed)
    found = []
    for task, node in enumerate(WHERE):
        first, busy = task * EACH, min(1.0, max(0.0, 0.62 + 0.3 * math.sin(task / 17) + draw.gauss(0, 0.06)))
        ill = {TRIPPED: "tripped"} if task == TRIPPED // EACH else {}
        replicas = []
        for slot in range(first, first + EACH):
            fate = draw.random()
            phase: m.ReplicaPhase = (
                "loading" if task in (77, 78) or fate < 0.004 else "down" if fate > 0.998 else "ready"
            )
            if phase == "ready" and fate > 0.99 and slot not in ill:
                ill[slot] = draw.choice(["degraded", "probing", "restarting"])
            running = max(0, round(16 * min(1.0, draw.gauss(busy, 0.1)))) if phase == "ready" else 0
            service = m.Service(
                served=4000, ttft=0.18 * math.exp(draw.gauss(busy, 0.35)), tbt=0.021, samples=50,
                utilization=0.1 + 0.85 * busy, memory=0.7 + 0.2 * busy,
            )  # fmt: skip
            replicas.append(
                m.ReplicaState(
                    slot,
                    1 + (slot in ill),
                    phase,
                    running,
                    max(0, running - 14),
                    round(40_000 * (1.05 - busy)),
                    token_rate=running * 47.0,
                    tokens=900_000,
                    restarts=int(slot in ill),
                    story="exit code 137: the kernel killed a rank" if phase == "down" else "",
                    service=service,
                )
            )
        version = "v2" if task >= 240 else ""
        found.append(
            Seen(
                f"gpu/{task}",
                "gpu",
                node,
                1,
                task not in (130, 131),
                EACH,
                40_000,
                replicas,
                ill,
                version,
                16,
                first,
            )
        )
    return found


def emulated(now: float) -> tuple[Aggregate, Chronicle]:
    """After two looks, with requests and alerts."""
    aggregate, chronicle = Aggregate(3, WHERE, now), Chronicle()
    before = tasks()
    for at, found in ((now - 10, [seen._replace(ill={}) for seen in before]), (now, before)):
        aggregate.look(found, [m.EntryStatus(0, "", "", 31_000, 212, 90_000, 80)], at)
        chronicle.look(found, at)
    sketch = Histogram()
    draw = random.Random(1)
    for _ in range(2000):
        sketch.add(round(2.4e5 * math.exp(draw.gauss(0, 0.5))))
    measured: dict[m.Measure, m.Sketch] = {name: sketch.sketch() for name in ("ttft", "e2e")}
    aggregate.agent("gpu", "emulated-000", m.AgentRollup(measured), now)
    aggregate.entry(m.EntryRollup({200: 88_000, 429: 120, 500: 61}, {}, 14, 3, 500, 400, measured), now)
    quiet = ("error_rate", "p99", "utilization", "memory", "queue")
    aggregate.alerts = [m.Alert(name, "ok", 0.1, 0.9, 900.0, "") for name in quiet]
    aggregate.alerts.append(
        m.Alert("replicas", "firing", 0.98, 0.99, 140.0, "98 % of the replicas are live (limit 99 %)")
    )
    return aggregate, chronicle


BATCHES = [
    m.BatchStatus("reviews-7c1e", "/secret/folder", 2_400_000, 1_610_223, 412, 18_000, "running"),
    m.BatchStatus("titles-02ab", "/secret/other", 90_000, 90_000, 0, 0, "finished"),
]


class Watched:
    """The broker's side, in a loop of its own thread. asked: queries that came, by name."""

    def __init__(self, folder: Folder) -> None:
        self.asked: list[str] = []
        self._folder, self._loop = folder, uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(30)

    async def _start(self) -> None:
        self.aggregate, self.chronicle = emulated(time.time())
        self._server = link.Server(
            link.context(), self._folder.fleet_key(), "127.0.0.1", m.ToBroker, self._on
        )  # fmt: skip
        self._folder.publish_head(HeadRecord(3, self._server.address, "localhost", 0))

    def _on(self, peer: bytes, message: m.ToBroker) -> None:
        now = time.time()
        match message:
            case m.EntryHello():
                self._server.send(peer, m.Welcome(3, 2.0))
            case m.FiguresQuery():
                answer = self.aggregate.answer(message, now)
                self._server.send(peer, msgspec.structs.replace(answer, batches=BATCHES))
            case m.MapQuery():
                self._server.send(peer, fleet_map(self.aggregate))
            case m.ReplicaQuery():
                self._server.send(peer, self._story(message, now))
        self.asked.append(type(message).__name__)

    def _story(self, query: m.ReplicaQuery, now: float) -> m.ReplicaStory:
        seen = next(one for one in self.aggregate.seen if one.first <= query.slot < one.first + EACH)
        state = seen.replicas[query.slot - seen.first]
        health = seen.ill.get(query.slot, "healthy")
        why = "its answers are 4.1 times as slow as its peers'" if health == "tripped" else ""
        return m.ReplicaStory(
            query, now, seen.node, "881234_5", seen.version, 1, seen.heard, "", health, why, state,
            self.chronicle.of(seen.key, query.slot),
        )  # fmt: skip

    def close(self) -> None:
        if not self._thread.is_alive():
            return

        async def stop() -> None:
            self._server.close()
            self._loop.call_soon(self._loop.stop)

        asyncio.run_coroutine_threadsafe(stop(), self._loop)
        self._thread.join(20)


def write_history(folder: Path, now: float) -> None:
    """An hour that rises, with one bad minute."""
    tier = TIERS[0]
    store, draw = Store(folder, [tier]), random.Random(3)
    rows = []
    first = int(now - 3600) // tier.step * tier.step
    for at in range(first, int(now) // tier.step * tier.step, tier.step):
        part = (at - first) / 3600
        load = 0.45 + 0.25 * part + 0.08 * math.sin(9 * part) + draw.gauss(0, 0.008)
        ready = NODES * EACH - (40 if 0.62 < part < 0.66 else 0)
        values = dict.fromkeys(REPLICAS, 0.0) | {
            "wanted": 3072, "ready": ready, "running": 3072 * 16 * load, "waiting": max(0, 9000 * (load - 0.66)),
            "tokens": 10 * 3072 * 16 * 46 * load, "requests": 2200 * load, "utilization": 0.1 + 0.95 * load,
            "memory": 0.86, "kv": 0.9 * load, "ttft_p50": 0.2 + 0.2 * load,
            "ttft_p99": 0.6 + load + draw.random() / 9,
        }  # fmt: skip
        rows.append((tier, "fleet", Row(at, 10.0, values)))
        clients = dict.fromkeys(CLIENTS, 0.0) | {"ok": 2200 * load, "failed": 60 if 0.62 < part < 0.64 else 0}
        rows.append((tier, "clients", Row(at, 10.0, clients)))
    store.add(rows, now)
    store.close(now, 30.0)


class Stand:
    """One entry, and the broker that it asks."""

    def __init__(self, home: Path) -> None:
        self.folder = Folder.create(home / "watched", TOML)
        keys = f"me:{KEY}\nmetrics-prom:sk-scraper-0123\n"
        write_atomic(self.folder.path / "secrets" / "api_keys", keys.encode())
        write_history(self.folder.path / "history", time.time())
        self.broker = Watched(self.folder)
        self.entry = Running(self.folder)


@contextlib.contextmanager
def standing(home: Path) -> Iterator[Stand]:
    stand = Stand(home)
    try:
        stand.entry.start()
        stand.entry.until(lambda: stand.entry.get("/dashboard/data/glance").status_code == 200)
        yield stand
    finally:
        stand.entry.stop(signal.SIGKILL)
        stand.broker.close()
        shutil.rmtree(runtime_directory(stand.folder.path, socket.gethostname()), ignore_errors=True)
