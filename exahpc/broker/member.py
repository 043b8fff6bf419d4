"""One agent in the fleet's books. Pure; used by `fleet` and `roster` alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from exahpc.broker.values import AgentPhase, AgentView
from exahpc.deployment.spec import Pool
from exahpc.wire.messages import AgentRoute, ReplicaState, Route

Role = Literal["current", "next", "leaving"]
"""current: its task's traffic goes to it; next: a successor that loads; leaving: it was succeeded, and drains."""


@dataclass(eq=False)
class Member:
    """Mutable; leaves the fleet only as an AgentView. heard: time of the last message; came: time of the first one
    of this incarnation; loaded: all its replicas were ready once; route: what the table says of it, None when it
    is not in it; weights: slot -> (incarnation, 0..1, probe) of replicas that were lowered; draining: told to end;
    version, until, sequences: see AgentHello."""

    key: str
    pool: Pool
    task: int
    role: Role = "current"
    phase: AgentPhase = "unheard"
    since: float = 0.0
    incarnation: int = 0
    peer: bytes | None = None
    node: str = ""
    address: str = ""
    job: str = ""
    restarts: int = 0
    heard: float = 0.0
    came: float = 0.0
    loaded: bool = False
    reason: str = ""
    version: str = ""
    until: float = 0.0
    sequences: int = 0
    handed_back: bool = False
    suspect: bool = False
    draining: bool = False
    parked: bool = False
    replicas: dict[int, ReplicaState] = field(default_factory=dict)
    weights: dict[int, tuple[int, float, bool]] = field(default_factory=dict)
    route: AgentRoute | None = None

    def view(self) -> AgentView:
        return AgentView(
            key=self.key,
            pool=self.pool.name,
            task=self.task,
            phase=self.phase,
            since=self.since,
            incarnation=self.incarnation,
            node=self.node,
            job=self.job,
            reason=self.reason,
            handed_back=self.handed_back,
            suspect=self.suspect,
            parked=self.parked,
            leaving=self.role == "leaving",
            version=self.version,
            until=self.until,
            sequences=self.capacity,
        )

    @property
    def capacity(self) -> int:
        """Sequences that each of its replicas runs at once."""
        return self.sequences or self.pool.max_sequences

    @property
    def slots(self) -> int:
        """Replicas that its task holds."""
        return len(self.pool.slots_of_task(self.task))

    @property
    def ready(self) -> int:
        """Replicas that could take traffic."""
        return sum(replica.phase == "ready" for replica in self.replicas.values())

    @property
    def ending(self) -> bool:
        """It takes nothing new for good: told so by us, or by Slurm's warning."""
        return self.draining or (not self.ready and self._drains)

    @property
    def _drains(self) -> bool:
        return any(replica.phase == "draining" for replica in self.replicas.values())

    def absorb(self, replicas: Iterable[ReplicaState]) -> bool:
        """Take over what the agent tells; True when something that routes depend on is new.

        States of older incarnations and of slots that this task does not hold are dropped.
        """
        wanted = self.pool.slots_of_task(self.task)
        changed = False
        for replica in replicas:
            known = self.replicas.get(replica.slot)
            if replica.slot not in wanted or (known is not None and replica.incarnation < known.incarnation):
                continue
            self.replicas[replica.slot] = replica
            if known is None or (known.phase, known.incarnation) != (replica.phase, replica.incarnation):
                changed = True
        return changed

    def earned_route(self) -> AgentRoute | None:
        """Routes by phase: only `ready` replicas of a living agent. One that drains keeps its place without them,
        so that nobody takes what still runs there for lost."""
        if self.phase != "alive" or self.role == "next":
            return None
        closed = self.draining or self.role == "leaving"
        replicas = [
            Route(r.slot, r.incarnation, self.capacity, *self._weight(r))
            for _, r in sorted(self.replicas.items())
            if r.phase == "ready" and not closed
        ]
        if not replicas and not closed and not self._drains:
            return None
        return AgentRoute(
            self.pool.name,
            self.task,
            self.incarnation,
            self.address,
            replicas,
            self.node,
            self.version,
            self.pool.length,
        )

    def _weight(self, replica: ReplicaState) -> tuple[float, bool]:
        incarnation, weight, probe = self.weights.get(replica.slot, (0, 1.0, False))
        return (weight, probe) if incarnation == replica.incarnation else (1.0, False)
