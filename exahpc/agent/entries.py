"""The link that entries connect to: who is there, what they get, and when they are told about room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import zmq

from exahpc.wire import link
from exahpc.wire.messages import Busy, EntryToAgent, Message, Room, Submits

ROOM_SECONDS = 0.05
_WORTH = 64  # tokens: smaller changes of a slot's load are not worth a message ...
_SHARE = 1 / 8  # ... nor are changes below this share of it


def worth_telling(before: list[tuple[int, int]], now: list[tuple[int, int]]) -> bool:
    """Whether entries would route differently: slots came or went, one became idle or busy, or moved by much.

    Each is (slot, outstanding tokens).
    """
    if len(before) != len(now):
        return True
    for (old_slot, old), (slot, load) in zip(before, now, strict=True):
        if old_slot != slot or (old == 0) != (load == 0) or abs(load - old) > max(_WORTH, _SHARE * old):
            return True
    return False


class Entries:
    """The server side. on_gone is called when a send finds that an entry is not there any more."""

    def __init__(
        self,
        ctx: zmq.Context[zmq.Socket[bytes]],
        key: link.FleetKey,
        host: str,
        on_message: Callable[[bytes, Any], None],
        on_gone: Callable[[bytes], None],
    ) -> None:
        self._on_message, self._on_gone = on_message, on_gone
        self._server = link.Server(ctx, key, host, EntryToAgent, self._heard)
        self._peers: set[bytes] = set()
        self._told: list[tuple[int, int]] = []
        self._told_at = float("-inf")
        self._hurry = False

    @property
    def address(self) -> str:
        return self._server.address

    def _heard(self, peer: bytes, message: Any) -> None:
        self._peers.add(peer)
        for one in message.submits if isinstance(message, Submits) else (message,):
            self._on_message(peer, one)

    def send(self, peer: bytes, message: Message) -> None:
        if not self._server.send(peer, message):
            if peer in self._peers:
                self._peers.discard(peer)
                self._on_gone(peer)
        elif isinstance(message, Busy):
            self._hurry = True  # whoever was refused should know the load at once

    def tell_room(self, outstanding: list[tuple[int, int]], now: float) -> None:
        """Push the load to every entry when it changed enough; at most once in ROOM_SECONDS."""
        if now - self._told_at < ROOM_SECONDS or not (self._hurry or worth_telling(self._told, outstanding)):
            return
        self._told, self._told_at, self._hurry = outstanding, now, False
        message = Room(outstanding)
        for peer in list(self._peers):
            self.send(peer, message)

    def close(self) -> None:
        self._server.close()
