"""What `leases` wants done. Performed by `batches`."""

from __future__ import annotations

from dataclasses import dataclass

from exahpc.batch.commits import AnyEvent


@dataclass(frozen=True)
class Log:
    """Append this event to the batch's commit journal."""

    batch: str
    event: AnyEvent


@dataclass(frozen=True)
class Grant:
    """Send a LeaseGrant to the agent."""

    agent: str
    batch: str
    lease: int
    first: int
    last: int
    alone: bool = False
    given_up: str = ""


@dataclass(frozen=True)
class Revoke:
    """Send a LeaseRevoke to the agent."""

    agent: str
    lease: int
    soft: bool = False


@dataclass(frozen=True)
class Salvage:
    """Look through this agent's journals, then call `salvaged`."""

    agent: str
    batch: str


Action = Log | Grant | Revoke | Salvage
