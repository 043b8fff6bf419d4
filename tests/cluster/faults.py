"""Everything that can break a deployment on a cluster, broken on purpose, one thing at a time, under load.

The load is online streams of the official client and a batch file. What is found: requests that failed, texts that
differ from undisturbed ones, batch rows that are missing or bad, and two times: until the entries' fleet table has
dropped what the fault hit (*noticed*), and until all replicas are ready again (*whole*).
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py

from exahpc.slurm.jobbook import JobBook
from exahpc.wire import link
from exahpc.wire import messages as m
from tests.cluster.conftest import DevCluster
from tests.live import Live, Load, until

Place = tuple[str, int, int]
"""Pool, slot, incarnation: what a route stands for."""


class Watcher:
    """Hears every fleet table, as an entry does, and remembers when each replica was dropped last."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._known: set[Place] = set()
        self.dropped: dict[Place, float] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._loop.call_soon_threadsafe(self._open)

    def _open(self) -> None:
        folder = self._live.folder
        self._client = link.Client(
            link.context(),
            folder.fleet_key(),
            lambda: record.address if (record := folder.head()) else None,
            m.BrokerToEntry,
            self._heard,
            on_up=lambda: void(self._client.send(m.EntryHello(99, 0, "watcher"))),
        )
        self._beat()

    def _beat(self) -> None:
        self._client.send(m.EntryBeat(0, 0, 0, 0, 0, 0))
        self._loop.call_later(2.0, self._beat)

    def _heard(self, message: Any) -> None:
        if isinstance(message, m.FleetTable):
            routes = {(a.pool, r.slot, r.incarnation) for a in message.agents for r in a.replicas if r.weight > 0}
            self.dropped |= dict.fromkeys(self._known - routes, time.monotonic())
            self._known = routes

    def places(self) -> set[Place]:
        return set(self._known)

    def close(self) -> None:
        def end() -> None:
            self._client.close()
            self._loop.stop()

        self._loop.call_soon_threadsafe(end)
        self._thread.join(10)


class Batch:
    """A batch file that runs beside what a test does."""

    def __init__(self, live: Live, name: str, rows: int) -> None:
        self._live, self._rows, self._output = live, rows, live.home / f"{name}.h5"
        source = live.home / f"{name}.jsonl"
        with source.open("w") as file:
            for row in range(rows):
                body = {"model": "tiny", "prompt": f"row {row}", "max_tokens": 40, "temperature": 0}
                line = {"custom_id": f"r{row}", "method": "POST", "url": "/v1/completions", "body": body}
                file.write(json.dumps(line) + "\n")
        self._argv = ("batch", "run", str(source), "--deployment", live.name, "-o", str(self._output))
        self._ended = ThreadPoolExecutor(1).submit(self._live.run, *self._argv, check=False, seconds=580)

    def has_begun(self) -> None:
        def begun() -> bool:
            found = self._live.status()
            return found is not None and any(b.ok > 10 for b in found.batches if self._output.name in b.folder)

        until("the first rows are done", begun, 90)

    def missing(self, seconds: float = 400) -> list[str]:
        """Waits for its end; what is wrong with the result, nothing when every row is there once and well."""
        done = self._ended.result(seconds)
        wrong = [] if done.returncode == 0 else [f"exit code {done.returncode}: {done.stderr[-300:]}"]
        with h5py.File(self._output) as file:
            wrong += [f"{len(file['status'])} of {self._rows} rows"] * (len(file["status"]) != self._rows)
            counts = Counter(file["status"][:].tolist())
        return wrong + [f"{count} rows of status {status}" for status, count in counts.items() if status != 200]


@dataclass
class Found:
    """Of one fault. noticed, whole: seconds, None where nothing had to be noticed."""

    fault: str
    requests: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    differing: int = 0
    rows: list[str] = field(default_factory=list)
    noticed: float | None = None
    whole: float | None = None

    @property
    def harmless(self) -> bool:
        return not (self.failed or self.differing or self.rows)


@dataclass(frozen=True)
class Fault:
    """strike: does it, returns the places that it hits; heal: undoes what would stay; seconds: until whole;
    beside: the load goes through an entry beside an agent, because the head's end with this fault."""

    name: str
    strike: Callable[[Field], set[Place]]
    heal: Callable[[Field], None] = lambda field: None
    seconds: float = 240.0
    beside: bool = False


class Field:
    """A deployment on a cluster that faults strike. wanted: replicas that are ready when it is whole."""

    def __init__(self, live: Live, nodes: DevCluster, wanted: int) -> None:
        self.live, self.nodes, self.wanted = live, nodes, wanted
        self.watcher = Watcher(live)

    def agent(self, pool: str, task: int) -> m.AgentStatus:
        found: m.AgentStatus = until(f"agent {pool}/{task}", lambda: self.live.agent(pool, task), 60)
        return found

    def places_of(self, pool: str, task: int) -> set[Place]:
        return {(pool, r.slot, r.incarnation) for r in self.agent(pool, task).replicas if r.phase == "ready"}

    def kill(self, node: str, signal: str, pattern: str) -> None:
        self.nodes.exec(node, "pkill", f"-{signal}", "-f", pattern)

    def suffer(self, fault: Fault, rows: int = 400, streams: int = 4, tokens: int = 300) -> Found:
        found = Found(fault.name)
        self._is_whole(f"before {fault.name}", 240)
        batch = Batch(self.live, fault.name.replace(" ", "-"), rows)
        batch.has_begun()
        url = until("an entry beside an agent", self._entry_beside, 60) if fault.beside else None
        load = Load(self.live, streams, tokens, url)
        time.sleep(1.0)
        self.watcher.dropped.clear()
        since = time.monotonic()
        struck = fault.strike(self)
        if struck:
            gone = struck.issubset
            until(f"{fault.name}: noticed", lambda: gone(self.watcher.dropped) or None, 60)
            found.noticed = round(max(self.watcher.dropped[place] for place in struck) - since, 2)
        time.sleep(5.0)
        load.halt()
        fault.heal(self)
        self._is_whole(f"after {fault.name}", fault.seconds)
        found.whole = round(time.monotonic() - since, 1)
        found.requests, found.failed = len(load.texts) + len(load.failures), Counter(load.failures)
        for prompt in {p for p, _ in load.texts}:
            undisturbed = self.live.stream(prompt, tokens)
            found.differing += sum(text != undisturbed for p, text in load.texts if p == prompt)
        found.rows = batch.missing()
        return found

    def _entry_beside(self) -> str:
        found = self.live.status()
        return next((entry.url for entry in found.entries if entry.node), "") if found else ""

    def _is_whole(self, when: str, seconds: float) -> None:
        """Every replica is ready within so long; what `status` notes and the nodes' states otherwise."""
        try:
            until(f"the fleet is whole {when}", lambda: self.live.ready() == self.wanted, seconds)
        except AssertionError as error:
            found = self.live.status()
            raise AssertionError(f"{error}\n{found.notes if found else 'no broker'}\n{self.nodes!r}") from None

    def close(self) -> None:
        self.watcher.close()


# --- the faults -----------------------------------------------------------------------------------------------


def _rank(signal: str) -> Callable[[Field], set[Place]]:
    def strike(field: Field) -> set[Place]:
        places = field.places_of("b", 0)
        field.nodes.exec(field.agent("b", 0).node, "pkill", f"-{signal}", "-n", "-f", "exahpc[.]replica.*--pool b")
        return places

    return strike


def _node(act: Callable[[Field, str], None], task: int) -> tuple[Callable[[Field], set[Place]], list[str]]:
    """The fault of the node of a/<task>, and the list that will hold its name for the healing."""
    struck: list[str] = []

    def strike(field: Field) -> set[Place]:
        places = field.places_of("a", task)
        struck[:] = [field.agent("a", task).node]
        act(field, struck[0])
        return places

    return strike, struck


def _crash(field: Field, node: str) -> None:
    field.nodes.crash(node)


def _cut(field: Field, node: str) -> None:
    field.nodes.netdown(node)


def _stop(field: Field, node: str) -> None:
    field.nodes.stop(node)


def _preempt(field: Field, node: str) -> None:
    field.nodes.run(
        *("sbatch", "--partition=urgent", f"--nodelist={node}", "--exclusive", "--output=/dev/null"),
        "--wrap=sleep 5",
    )


def _agent(field: Field) -> set[Place]:
    field.kill(field.agent("a", 0).node, "9", "exahpc[.]agent.*--pool a --task 0")
    return set()


def _broker(field: Field) -> set[Place]:
    record = field.live.folder.head()
    assert record is not None
    field.kill(record.host, "9", "exahpc[.]broker")
    until("a higher epoch answers", lambda: (s := field.live.status()) and s.epoch > record.epoch, 30)
    return set()


def _broker_and_node(field: Field) -> set[Place]:
    record = field.live.folder.head()
    assert record is not None
    places = _crash_strike(field)
    field.kill(record.host, "9", "exahpc[.]broker")
    return places


def _head(field: Field) -> set[Place]:
    record, book = field.live.folder.head(), JobBook.load(field.live.folder.path)
    assert record is not None
    assert book.head is not None
    field.nodes.run("scontrol", "requeue", book.head)
    until("a new broker", lambda: (s := field.live.status()) and s.epoch > record.epoch, 90)
    return set()


# one task must not spend its budget of rebuilds alone
_crash_strike, _crashed = _node(_crash, 0)
_cut_strike, _cut_off = _node(_cut, 1)
_stop_strike, _stopped = _node(_stop, 2)
_preempt_strike, _ = _node(_preempt, 1)


def _start(names: list[str]) -> Callable[[Field], None]:
    return lambda field: field.nodes.start(names[0])


def _stop_slurmd(field: Field) -> set[Place]:
    _stop_strike(field)
    return set()  # the replica lives on until Slurm takes the node's job away


FAULTS = (
    Fault("rank killed", _rank("9")),
    Fault("rank stopped", _rank("STOP")),
    Fault("agent killed", _agent),
    Fault("broker killed", _broker),
    Fault("node crash", _crash_strike, _start(_crashed)),
    Fault("link down", _cut_strike, lambda field: field.nodes.netup(_cut_off[0])),
    Fault("slurmd stopped", _stop_slurmd, _start(_stopped)),
    Fault("preempted", _preempt_strike),
    Fault("broker and node", _broker_and_node, _start(_crashed)),
    Fault("head requeued", _head, beside=True),
)


def void(_: object) -> None:
    """For a lambda that must return nothing."""


def deployment(name: str, model: Path, head: str) -> str:
    """TOML: pool a of three one-node tasks, pool b of one 1x2 replica, the head kept apart."""
    return f"""
name = "{name}"
[model]
path = "{model}"
dtype = "float32"
context = 2048
[slurm]
partition = "main"
time = "1:00:00"
extra = ["--exclude={head}"]
[[pool]]
name = "a"
replicas = 3
max_sequences = 8
slurm.gres = "gpu:tile:7"
[[pool]]
name = "b"
pipeline_parallel = 2
max_sequences = 8
slurm.gres = "gpu:tile:7"
[head]
entries = 2
entries_on_nodes = 1
slurm.extra = ["--nodelist={head}"]
[recovery]
backoff_seconds = 0.2
"""
