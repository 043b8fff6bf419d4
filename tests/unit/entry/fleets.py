"""Fleets and requests for the laws of routing."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from exahpc.deployment.policy import Routing
from exahpc.entry.fleet import Replica
from exahpc.entry.ledger import Record
from exahpc.entry.routing import Router
from exahpc.wire import messages as m


def router_of(agents: Iterable[m.AgentRoute], *, seed: int = 1, node: str = "", **over: Any) -> Router:
    """A router that knows these agents, all up. over: keys of [routing], and `shares` of the table."""
    shares = over.pop("shares", [])
    router = Router(random.Random(seed).randrange, Routing(**over), node)
    router.update(m.FleetTable(1, 1, list(agents), shares), 0.0)
    for agent in router.agents.values():
        router.link(agent, True)
    return router


def routes(
    count: int, *, first: int = 0, capacity: int = 100, weights: dict[int, float] | None = None, **over: Any
) -> list[m.AgentRoute]:
    """One agent a replica. over: of AgentRoute, and `probe`."""
    probe, weights = over.pop("probe", False), weights or {}
    return [
        m.AgentRoute("a", t, 1, "x", [m.Route(t, 1, capacity, weights.get(t, 1.0), probe)], **over)
        for t in range(first, first + count)
    ]


def ask(tokens: int = 10, *, sequences: int = 1, shun: Replica | None = None, **over: Any) -> Record:
    record = Record(
        "r", "completion", b"", stream=True, seed=1, created=1, choices=sequences, prompt=0, new=tokens, **over
    )
    record.shun = shun
    return record


def picked(router: Router, what: Record | None = None, now: float = 0.0, waited: float = 0.0) -> Replica:
    found = router.pick(what or ask(), now, waited)
    assert found is not None
    return found


def taken(router: Router, what: Record | None = None, now: float = 0.0, waited: float = 0.0) -> Replica:
    """Picked, and it runs there."""
    what = what or ask()
    found = picked(router, what, now, waited)
    router.take(found, what.sequences, what.tokens)
    return found


def replicas(router: Router) -> list[Replica]:
    return [r for a in router.agents.values() for r in a.replicas.values()]
