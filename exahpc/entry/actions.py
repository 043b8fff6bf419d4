"""What the desk wants done. Pure values; `dispatch` performs them."""

from __future__ import annotations

from dataclasses import dataclass

from exahpc.entry.fleet import Agent
from exahpc.entry.ledger import Record
from exahpc.errors import RequestError
from exahpc.wire.messages import Cancel, Submit


@dataclass(frozen=True, slots=True)
class Tell:
    """Send a message to an agent. A Submit that cannot be sent comes back as `unsent`."""

    agent: Agent
    message: Submit | Cancel


@dataclass(frozen=True, slots=True)
class Finish:
    """The client gets its last bytes."""

    record: Record
    data: bytes


@dataclass(frozen=True, slots=True)
class Refuse:
    """The client gets an error instead (of the rest) of its answer."""

    record: Record
    error: RequestError


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a link to an agent."""

    agent: Agent


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the link to an agent; nothing runs there."""

    agent: Agent


Action = Tell | Finish | Refuse | Connect | Disconnect
