"""Counting replicas up: from single ones to nodes, switches, pools and the fleet. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from exahpc.wire.messages import Figures, Measure, Recent, ReplicaState, Scope

_DIGITS = 4


class Seen(NamedTuple):
    """One task as the broker knows it now. life: incarnation of its agent; heard: its beats arrive; slots:
    replicas it is to have now; kv: tokens of KV cache of each, sequences: that each runs at once; first: its first
    slot; ill: slot -> what is wrong with a replica that is not healthy."""

    key: str
    pool: str
    node: str
    life: int
    heard: bool
    slots: int
    kv: int
    replicas: list[ReplicaState]
    ill: Mapping[int, str] = {}
    version: str = ""
    sequences: int = 1
    first: int = 0


class Counts(NamedTuple):
    """What only grows. Of a replica: the first three since its incarnation began, or its agent's, the others since
    its agent's did."""

    requests: int = 0
    failed: int = 0
    odd: int = 0
    tokens: int = 0
    restarts: int = 0
    prefix_hits: int = 0
    preemptions: int = 0

    def plus(self, other: Counts) -> Counts:
        return Counts(*(a + b for a, b in zip(self, other, strict=True)))


def counts_of(replica: ReplicaState) -> Counts:
    service = replica.service
    return Counts(
        service.served,
        service.failed,
        service.odd,
        replica.tokens,
        replica.restarts,
        replica.prefix_hits,
        replica.preemptions,
    )


def kv_share(replica: ReplicaState, kv: int) -> float:
    """Share of the KV cache that running sequences hold; -1 before the replica has told anything."""
    if replica.kv_free == 0 and not replica.running and not replica.waiting:
        return -1.0
    return min(1.0, max(0.0, 1 - replica.kv_free / max(1, kv)))


class Tally:
    """Gauges of a group of replicas; what is silent or unknown counts in no mean."""

    __slots__ = (
        "ill", "kv", "kv_known", "memory", "ready", "running", "silent", "token_rate", "use", "use_known",
        "waiting", "wanted",
    )  # fmt: skip

    def __init__(self) -> None:
        self.wanted = self.ready = self.ill = self.silent = self.running = self.waiting = 0
        self.kv_known = self.use_known = 0
        self.token_rate = self.kv = self.use = 0.0
        self.memory = -1.0

    def task(self, seen: Seen) -> None:
        """All replicas of a task. Of a silent one: only that they are missed."""
        self.wanted += seen.slots
        if not seen.heard:
            self.silent += seen.slots
            return
        for replica in seen.replicas:
            self.running += replica.running
            self.waiting += replica.waiting
            self.token_rate += replica.token_rate
            if replica.phase == "ready":
                self.ready += 1
                self.ill += replica.slot in seen.ill
                share = kv_share(replica, seen.kv)
                if share >= 0:
                    self.kv += share
                    self.kv_known += 1
            service = replica.service
            if service.utilization >= 0:
                self.use += service.utilization
                self.use_known += 1
            if service.memory > self.memory:
                self.memory = service.memory

    def merge(self, other: Tally) -> None:
        for name in Tally.__slots__:
            if name != "memory":
                setattr(self, name, getattr(self, name) + getattr(other, name))
        self.memory = max(self.memory, other.memory)

    def figures(self, scope: Scope, name: str, counts: Counts, recent: Mapping[Measure, Recent]) -> Figures:
        return Figures(
            scope,
            name,
            self.wanted,
            self.ready,
            self.ill,
            self.silent,
            self.running,
            self.waiting,
            round(self.token_rate, 1),
            *counts,
            round(self.kv / self.kv_known, _DIGITS) if self.kv_known else -1.0,
            round(self.use / self.use_known, _DIGITS) if self.use_known else -1.0,
            self.memory,
            dict(recent),
        )


def of_replica(seen: Seen, replica: ReplicaState) -> Figures:
    """One replica alone; counts as its agent tells them, percentiles: the medians of its last requests."""
    tally = Tally()
    tally.task(seen._replace(slots=1, replicas=[replica]))
    service, recent = replica.service, dict[Measure, Recent]()
    if service.samples:
        recent["ttft"] = Recent(service.samples, service.ttft * 1e6, 0.0, 0.0)
        recent["tbt"] = Recent(service.samples, service.tbt * 1e6, 0.0, 0.0)
    return tally.figures("replica", f"{seen.pool}/{replica.slot}", counts_of(replica), recent)
