"""What the desk wants done. Pure values; `dispatch` performs them."""

from __future__ import annotations

import msgspec

from exahpc.entry.fleet import Agent
from exahpc.entry.ledger import Record
from exahpc.errors import RequestError
from exahpc.wire.messages import Cancel, Submit


class Tell(msgspec.Struct, frozen=True):
    """Send a message to an agent. A Submit that cannot be sent comes back as `unsent`."""

    agent: Agent
    message: Submit | Cancel


class Comfort(msgspec.Struct, frozen=True):
    """A client in the middle of a stream gets a sign of life while its request waits."""

    record: Record


class Finish(msgspec.Struct, frozen=True):
    """The client gets its last bytes."""

    record: Record
    data: bytes


class Refuse(msgspec.Struct, frozen=True):
    """The client gets an error instead (of the rest) of its answer."""

    record: Record
    error: RequestError


class Connect(msgspec.Struct, frozen=True):
    """Open a link to an agent."""

    agent: Agent


class Disconnect(msgspec.Struct, frozen=True):
    """Close the link to an agent; nothing runs there."""

    agent: Agent


Action = Tell | Comfort | Finish | Refuse | Connect | Disconnect
