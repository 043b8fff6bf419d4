"""What entries have not been told yet of what was generated for them. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from exahpc.agent.actions import Action, ToPeer
from exahpc.agent.choice import Choice
from exahpc.wire.messages import Frame, Frames

PROGRESS_SECONDS = 0.25
"""Ids without text for the client (no stream, or held back) are told to the entry this often."""


class Untold:
    """text: choices with text for a client, told at the next `due`; ids: those with ids for the entry only. Both
    in the order in which they came."""

    def __init__(self) -> None:
        self.text: dict[Choice, None] = {}
        self.ids: dict[Choice, None] = {}
        self._ids_at = float("-inf")

    def due(self, now: float) -> list[Action]:
        """Take what is to be told now, one message a peer."""
        due, self.text = self.text, {}
        if now - self._ids_at >= PROGRESS_SECONDS:
            self._ids_at = now
            due |= self.ids
            self.ids = {}
        return frames(due) if due else []

    def forget(self, choices: Iterable[Choice]) -> None:
        """Nobody waits for these any more."""
        for choice in choices:
            self.text.pop(choice, None)
            self.ids.pop(choice, None)


def frames(choices: Iterable[Choice]) -> list[Action]:
    """All that these have to tell, one message a peer; batch rows have no peer."""
    by_peer: dict[bytes, list[Frame]] = {}
    for choice in choices:
        peer = choice.job.peer
        if peer is not None and choice.untold:
            by_peer.setdefault(peer, []).append(choice.take_frame())
    return [ToPeer(peer, Frames(told)) for peer, told in by_peer.items()]
