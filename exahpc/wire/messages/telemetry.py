"""Telemetry: rollups pushed to the broker, and the figures that it makes of them. Never on a request's way."""

from __future__ import annotations

from typing import Literal

import msgspec

from exahpc.wire.messages.base import Message
from exahpc.wire.messages.client import BatchStatus
from exahpc.wire.messages.control import ReplicaState

Measure = Literal["ttft", "tbt", "e2e", "queue", "prompt", "output"]
"""Time to the first token, between tokens, from end to end and in line, in microseconds; tokens of prompts and
answers. What exactly is measured where: docs/explanation/telemetry.md."""
Scope = Literal["fleet", "pool", "switch", "node", "replica"]
Detail = Literal["", "node", "replica"]


class Sketch(msgspec.Struct, frozen=True, array_like=True):
    """A histogram on the wire (`telemetry.histogram`): bucket -> observations, and the sum of all values."""

    counts: dict[int, int]
    total: int


class AgentRollup(Message, frozen=True):
    """agent -> broker: what was measured since the last one; nothing is sent when there is nothing.

    Requests and batch rows alike. Everything else about replicas, errors first of all, is in beats.
    """

    sketches: dict[Measure, Sketch]


class EntryRollup(Message, frozen=True):
    """entry -> broker: the same of an entry's requests, as their clients saw them.

    statuses: ended requests by HTTP status, 499 for a client that left; refused: those that the entry itself
    ended, by error code; resent, busy: see the entry's counts; known: requests of whose prompt some replica had
    the beginning, affine: those that were sent there.
    """

    statuses: dict[int, int]
    refused: dict[str, int]
    resent: int
    busy: int
    known: int
    affine: int
    sketches: dict[Measure, Sketch]


class FiguresQuery(Message, frozen=True):
    """entry, client -> broker. Answer: FleetFigures or Refused.

    detail: rows of nodes, or of nodes and replicas, beside those of fleet, pools and switches; pool, switch, node:
    only of these, "" for all.
    """

    detail: Detail = ""
    pool: str = ""
    switch: str = ""
    node: str = ""


class Recent(msgspec.Struct, frozen=True, array_like=True):
    """Of the last minute: observations, and percentiles in the unit of the measure."""

    count: int
    p50: float
    p90: float
    p99: float


class Figures(msgspec.Struct, frozen=True, array_like=True):
    """One group of replicas. name: "" for the fleet, "POOL/SLOT" for a replica.

    wanted, ready: replicas; ill: those of `ready` that are not healthy; silent: those that are not heard now:
    their counts are the last known ones, and no gauge counts them. running, waiting: sequences; token_rate: tokens
    a second.
    requests, failed, odd, tokens, restarts, prefix_hits, preemptions: counted since the broker began.
    kv, utilization: mean shares (0..1) of KV cache and accelerators in use, over those that are known; memory: the
    highest known share of accelerator memory in use; -1: nobody can tell. recent: last minute, by measure; of a
    replica: the medians of its last requests, as p50.
    """

    scope: Scope
    name: str
    wanted: int = 0
    ready: int = 0
    ill: int = 0
    silent: int = 0
    running: int = 0
    waiting: int = 0
    token_rate: float = 0.0
    requests: int = 0
    failed: int = 0
    odd: int = 0
    tokens: int = 0
    restarts: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    kv: float = -1.0
    utilization: float = -1.0
    memory: float = -1.0
    recent: dict[Measure, Recent] = {}


class EntryFigures(msgspec.Struct, frozen=True, array_like=True):
    """All entries together, since the broker began; in_flight, waiting: requests now; recent: the last minute."""

    entries: int
    in_flight: int
    waiting: int
    statuses: dict[int, int]
    refused: dict[str, int]
    resent: int
    busy: int
    known: int
    affine: int
    sketches: dict[Measure, Sketch]
    recent: dict[Measure, Recent]


class Alert(msgspec.Struct, frozen=True, array_like=True):
    """One rule that looks at the deployment. value: None while it is not known; seconds: in this state."""

    name: str
    state: Literal["ok", "pending", "firing", "resolving"]
    value: float | None
    threshold: float
    seconds: float
    text: str


class FleetFigures(Message, frozen=True):
    """broker -> entry, client. query: that it answers; at: Unix time of the figures, at most some ten seconds ago.

    rows: fleet, pools, switches, then what the query wanted; left_out: rows beyond the bound on their number;
    sketches: since the broker began, by "" (fleet) and pool; batches: those that are open, then the last that
    ended, a few in all.
    """

    query: FiguresQuery
    epoch: int
    at: float
    rows: list[Figures]
    sketches: dict[str, dict[Measure, Sketch]]
    entries: EntryFigures
    alerts: list[Alert]
    left_out: int = 0
    batches: list[BatchStatus] = []


class MapQuery(Message, frozen=True):
    """entry, client -> broker: the whole fleet at a glance. Answer: FleetMap."""


class MapTask(msgspec.Struct, frozen=True, array_like=True):
    """One task in a FleetMap. first, count: its slots; heard: its beats arrive, else its cells are the last known
    ones."""

    pool: str
    node: str
    switch: str
    version: str
    first: int
    count: int
    heard: bool


class FleetMap(Message, frozen=True):
    """broker -> entry, client: four bytes for each replica of each task, in the order of the tasks: 12 kB for
    3,072 replicas, 25 kB with their 256 nodes. at: Unix time.

    The bytes: index in `telemetry.map.STATES`; sequences that run or wait, 100 are as many as it runs at once, 254
    at most; KV cache in use and time to the first token lately, both 255 where nobody can tell: the former in
    percent, the latter as 20 * log2(1 + seconds * 10), 254 at most.
    """

    epoch: int
    at: float
    tasks: list[MapTask]
    cells: bytes


class ReplicaQuery(Message, frozen=True):
    """entry, client -> broker: the story of one replica. Answer: ReplicaStory or Refused (there is none)."""

    pool: str
    slot: int


class Moment(msgspec.Struct, frozen=True, array_like=True):
    """Something that happened. at: Unix time at which the broker saw it."""

    at: float
    text: str


class ReplicaStory(Message, frozen=True):
    """broker -> entry, client. at: Unix time.

    node, job, version, restarts: of its task, which Slurm started again so many times; heard: its beats arrive,
    else `state` is the last known one; words: what recovery says of the task. health: "healthy", or what is wrong,
    and why; state: None while its agent told nothing of it. moments: since the broker began, oldest first.
    """

    query: ReplicaQuery
    at: float
    node: str
    job: str
    version: str
    restarts: int
    heard: bool
    words: str
    health: str
    why: str
    state: ReplicaState | None
    moments: list[Moment]
