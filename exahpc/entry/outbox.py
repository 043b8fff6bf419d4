"""Requests on their way to agents: those of one turn of the loop that go to the same agent share a message.

Under load, dozens of clients are heard in one turn. A message costs both processes and their ZeroMQ threads far
more than a request in it, and it leaves in the same turn, so nobody waits for company.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from exahpc.entry.fleet import Agent
from exahpc.wire.messages import Cancel, EntryToAgent, Submit, Submits

_FULL = 2**20  # bytes of bodies in one message (link.MAX_MESSAGE_BYTES is much more), unless one alone has more


class Outbox:
    """send: False when the message cannot leave; unsent: what to do with its requests then."""

    def __init__(
        self,
        send: Callable[[Agent, EntryToAgent], bool],
        unsent: Callable[[Agent, list[Submit]], None],
    ) -> None:
        self._send, self._unsent = send, unsent
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Agent, list[Submit]] = {}
        self._bytes = 0
        self._due = False

    def put(self, agent: Agent, message: Submit | Cancel) -> None:
        """A Submit leaves at the end of this turn, a Cancel at once, behind what waits for its agent."""
        if isinstance(message, Cancel):
            self._flush(agent)
            self._send(agent, message)
            return
        if not self._due:
            self._due = True
            self._loop.call_soon(self._flush_all)
        self._waiting.setdefault(agent, []).append(message)
        self._bytes += len(message.body)
        if self._bytes > _FULL:
            self._flush_all()

    def forget(self, agent: Agent) -> None:
        """Its link is gone, and the desk has decided anew on all that went there."""
        self._waiting.pop(agent, None)

    def _flush_all(self) -> None:
        self._due, self._bytes = False, 0
        for agent in list(self._waiting):
            self._flush(agent)

    def _flush(self, agent: Agent) -> None:
        submits = self._waiting.pop(agent, None)
        if submits and not self._send(agent, submits[0] if len(submits) == 1 else Submits(submits)):
            self._unsent(agent, submits)
