"""What lies on a simulated node: replicas' steps, and what Slurm gave the agent there."""

from __future__ import annotations

from dataclasses import dataclass

from exahpc.deployment.spec import Pool


@dataclass
class Step:
    """A replica's step on a node, which outlives its agent. ready: its canary had answered; slow, frozen: see
    `Batch`."""

    slot: int
    incarnation: int
    slow: float
    ready: bool = False
    frozen: bool = False
    ended: bool = False


@dataclass(frozen=True)
class Place:
    """Where an agent runs: what Slurm gave it. until: when its job ends, 0 when nobody knows."""

    pool: Pool
    task: int
    job: str
    node: str
    until: float
    restarts: int

    @property
    def key(self) -> str:
        return f"{self.pool.name}/{self.task}"
