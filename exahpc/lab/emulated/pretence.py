"""EMULATED: figures of replicas that serve nobody, as they would be under load: what telemetry has to carry."""

from __future__ import annotations

import random

import msgspec

from exahpc.telemetry.meters import AgentMeter
from exahpc.wire.messages import ReplicaState, Service

RATE = 2.0
"""Requests a second of one replica."""
OUTPUT = 128


class Pretence:
    """One agent's."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self._served = 0.0

    def pass_time(self, meter: AgentMeter, seconds: float) -> None:
        """Measure what so much time would bring."""
        requests = RATE * seconds
        self._served += requests
        for _ in range(round(requests * self._replicas)):
            ttft, tbt = random.lognormvariate(-2.0, 0.6), random.lognormvariate(-4.0, 0.4)
            output = 1 + int(random.expovariate(1 / OUTPUT))
            meter.queue.seconds(0.0)
            meter.ttft.seconds(ttft)
            meter.tbt.seconds(tbt, output)
            meter.ended(ttft + tbt * output, int(random.lognormvariate(6.0, 1.0)), output)

    def states(self, states: list[ReplicaState]) -> list[ReplicaState]:
        """The same replicas, with counts that grow."""
        served = int(self._served)
        service = Service(served=served, ttft=0.15, tbt=0.02, samples=32, utilization=0.9, memory=0.9)
        return [msgspec.structs.replace(s, tokens=OUTPUT * served, service=service) for s in states]
