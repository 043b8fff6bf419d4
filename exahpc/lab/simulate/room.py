"""When a simulated agent tells entries about its load: as `agent.entries`, at a coarser pace."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from exahpc.agent.entries import STEADY_SECONDS, worth_telling
from exahpc.entry.fleet import Agent
from exahpc.lab.simulate.timeline import Timeline
from exahpc.wire.messages import Load

if TYPE_CHECKING:
    from exahpc.lab.simulate.gateway import Gateway
    from exahpc.lab.simulate.relay import Relay


class Room:
    """seconds: least time between two words; links: who is told. Replicas that stay idle are left out."""

    def __init__(self, timeline: Timeline, seconds: float, links: dict[Gateway, Agent]) -> None:
        self._timeline, self._seconds, self._links = timeline, seconds, links
        self._told: dict[int, Load] = {}
        self._told_at = 0.0
        self._due = math.inf

    def stirred(self, relay: Relay) -> None:
        """The load of a replica has changed."""
        self._plan(self._timeline.now + self._seconds, relay)

    def _plan(self, when: float, relay: Relay) -> None:
        if when < self._due:
            self._due = when
            self._timeline.at(when, self._tell, when, relay)

    def _tell(self, due: float, relay: Relay) -> None:
        if due != self._due:
            return
        self._due = math.inf
        now, loads = self._timeline.now, relay.loads()
        busy = any(load.tokens for load in loads)
        if (busy and now - self._told_at >= STEADY_SECONDS) or self._worth(loads):
            self._told, self._told_at = {load.slot: load for load in loads}, now
            for gateway, agent in self._links.items():
                gateway.room(agent, loads)
        if busy:
            self._plan(max(self._told_at + STEADY_SECONDS, now + self._seconds), relay)

    def _worth(self, loads: list[Load]) -> bool:
        told = self._told
        return worth_telling([told.get(load.slot) or Load(load.slot, 0) for load in loads], loads)
