"""A simulated replica: the emulated batch, and the agent's real books about it (capacity, meter)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from exahpc.agent.capacity import Capacity
from exahpc.agent.service import VARIED, Meter, Timing
from exahpc.entry.fleet import Agent
from exahpc.lab.emulated.model import Batch
from exahpc.lab.simulate.outcomes import Client
from exahpc.wire.messages import Load, ReplicaHello, Service, Submit

if TYPE_CHECKING:
    from exahpc.lab.simulate.gateway import Gateway


class Work:
    """One attempt of a request with one choice: what the agent's `Job` and `Choice` are to its books.

    gateway, agent: whom it came from, and how that knows this agent; had: tokens that it came with; told: those
    that the gateway knows of, since told_at; alone: nothing may run beside it.
    """

    row = False
    __slots__ = (
        "agent", "alone", "attempt", "client", "count", "gateway", "had", "left", "need", "new", "prefill",
        "replica", "request", "sequence", "timing", "told", "told_at",
    )  # fmt: skip

    replica: Replica
    timing: Timing

    def __init__(self, gateway: Gateway, agent: Agent, message: Submit, client: Client) -> None:
        self.gateway, self.agent, self.client = gateway, agent, client
        self.request, self.attempt, self.alone = message.request, message.attempt, message.alone
        self.had = had = len(message.resume[0].ids) if message.resume else 0
        self.count = self.told = had
        self.new = client.new
        self.prefill = client.prompt + had
        self.need = client.prompt + client.new
        self.left = self.prefill + max(1, client.new - had)
        self.sequence = 0
        self.told_at = 0.0

    @property
    def job(self) -> Work:
        return self


class Replica:
    """One incarnation that serves. slot, incarnation: see `wire.messages`; due: when it is woken next; living: it
    has not been lost; told_tokens: see `Relay.look`; works: what runs, by sequence, as the capacity counts it."""

    __slots__ = ("batch", "capacity", "due", "incarnation", "living", "slot", "told_tokens", "works")

    def __init__(self, hello: ReplicaHello, batch: Batch, meter: Meter) -> None:
        self.slot, self.incarnation = hello.slot, hello.incarnation
        self.batch = batch
        self.capacity: Capacity[Work] = Capacity(hello, meter)
        self.works = self.capacity.running
        self.due = math.inf
        self.living = True
        self.told_tokens = 0

    def fits(self, need: int) -> bool:
        """The agent's rule. What running sequences hold is only counted when that matters."""
        capacity = self.capacity
        if self.batch.kv + need <= capacity.hello.tokens:
            return len(capacity.running) < capacity.hello.sequences
        self.count()
        return capacity.fits(need)

    @property
    def waiting(self) -> list[Work]:
        """What waits for the replica to be empty."""
        return list(self.capacity.online)

    def wait(self, work: Work) -> None:
        """It gets its place when the replica is empty."""
        self.capacity.wait(work)

    def admit(self, work: Work, sequence: int, now: float) -> None:
        work.timing = Timing(now)
        work.told_at = now
        self.capacity.start(work, sequence)
        self.batch.admit(sequence, work.prefill, max(1, work.new - work.count), now)

    def started(self, work: Work, now: float, *, odd: bool) -> None:
        """Its first token of this attempt. odd: all of them will be the same."""
        self.capacity.meter.first(work, 0 if odd else VARIED, now)
        work.left -= work.prefill + 1
        work.prefill = 0
        work.count += 1

    def ended(self, work: Work, now: float) -> None:
        """It has all its tokens."""
        meter = self.capacity.meter
        meter.odd += meter.ended(work, now)
        meter.served += 1
        self.capacity.leave(work)

    def leave(self, work: Work) -> bool:
        """It ended otherwise. False when it only waited."""
        return self.capacity.leave(work)

    def count(self) -> None:
        """Bring the books of all sequences up to where the batch is."""
        for sequence, work in self.works.items():
            if not work.prefill:
                fresh = work.had + self.batch.emitted(sequence) - work.count
                work.count += fresh
                work.left -= fresh

    def service(self, now: float) -> Service:
        """What the meter says."""
        self.count()
        return self.capacity.meter.service(self.capacity.running.values(), now)

    @property
    def load(self) -> Load:
        batch, capacity = self.batch, self.capacity
        sequences = capacity.hello.sequences if capacity.alone else len(batch)
        return Load(self.slot, batch.outstanding, sequences, min(1.0, batch.kv / batch.kv_tokens))
