"""What the broker decides beyond who is alive: the pure policies, fed with what the fleet hears. Pure.

Each policy is a module of its own; this one gives all of them the same events, and turns what they want into
actions of the fleet.
"""

from __future__ import annotations

from collections.abc import Iterable

from exahpc.broker.fleet import Fleet
from exahpc.broker.values import AgentView, FleetAction
from exahpc.deployment.spec import Deployment
from exahpc.wire.messages import EntryBeat, ReplicaState


class Policies:
    """Times in seconds of the fleet's clock."""

    def __init__(self, deployment: Deployment, fleet: Fleet, now: float) -> None:
        self._deployment, self._fleet = deployment, fleet

    def up(self, view: AgentView, now: float) -> None:
        """An agent said hello, or is heard again."""

    def down(self, key: str, now: float) -> None:
        """An agent works no more."""

    def heard(self, key: str, replicas: Iterable[ReplicaState], now: float) -> list[FleetAction]:
        """News of an agent's replicas; after its hello: all of them."""
        return []

    def entry(self, peer: bytes, beat: EntryBeat, now: float) -> None:
        """An entry told its load."""

    def tick(self, now: float) -> list[FleetAction]:
        """Call about once a second."""
        return []

    def notes(self, now: float) -> list[str]:
        """For `status`."""
        return []
