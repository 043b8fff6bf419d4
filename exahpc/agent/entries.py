"""The link that entries connect to: who is there, what they get, and when they are told about room."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq

from exahpc.wire import link, local
from exahpc.wire.messages import AgentToEntry, Answer, Answers, Busy, EntryToAgent, Load, Room, Submits

log = logging.getLogger(__name__)

ROOM_SECONDS = 0.05
"""Least time between two messages about room."""
STEADY_SECONDS = 2.0
"""Load that does not change is told so often: entries forget what they were told (`entry.fleet`)."""
MOST_A_SECOND = 320
"""Such messages, to all entries together: with an entry on each of hundreds of nodes they come more rarely."""
_TOKENS, _SEQUENCES = 64, 4  # smaller changes of a slot's load are not worth a message ...
_SHARE = 1 / 8  # ... nor are changes below this share of it
_KV = 1 / 10  # change of the share of KV cache that is
_MOST = 256  # answers in one message


def worth_telling(before: list[Load], now: list[Load]) -> bool:
    """Whether entries would route differently: slots came or went, one became idle or busy, or moved by much."""
    return before != now and (len(before) != len(now) or any(map(_differ, before, now)))


def _differ(old: Load, new: Load) -> bool:
    return (
        old.slot != new.slot
        or (old.tokens == 0) != (new.tokens == 0)
        or abs(new.tokens - old.tokens) > max(_TOKENS, _SHARE * old.tokens)
        or abs(new.sequences - old.sequences) > max(_SEQUENCES, _SHARE * old.sequences)
        or abs(new.kv - old.kv) > _KV
    )


class Entries:
    """The server side. on_gone is called when a send finds that an entry is not there any more.

    What one turn of the loop has for an entry leaves at its end in one message: a message costs both processes and
    their ZeroMQ threads far more than an answer in it.
    """

    def __init__(
        self,
        ctx: zmq.Context[zmq.Socket[bytes]],
        key: link.FleetKey,
        host: str,
        on_message: Callable[[bytes, Any], None],
        on_gone: Callable[[bytes], None],
        door: Path | None = None,
    ) -> None:
        """door: where entries of this node come in, past the encryption; None: they come as all others do."""
        self._on_message, self._on_gone = on_message, on_gone
        self._server = link.Server(ctx, key, host, EntryToAgent, self._heard)
        self._door = None if door is None else _opened(door, self._heard)
        self._directory = None if door is None else door.parent
        self._loop = asyncio.get_running_loop()
        self._peers: set[bytes] = set()
        self._waiting: dict[bytes, list[Answer]] = {}
        self._told: list[Load] = []
        self._told_at = float("-inf")
        self._hurry = False

    @property
    def address(self) -> str:
        return self._server.address

    def _heard(self, peer: bytes, message: Any) -> None:
        if peer not in self._peers:
            self._peers.add(peer)
            self._hurry = True  # it knows nothing yet
        for one in message.submits if isinstance(message, Submits) else (message,):
            self._on_message(peer, one)

    def send(self, peer: bytes, answer: Answer) -> None:
        """At the end of this turn, in the order of the calls."""
        if isinstance(answer, Busy):
            self._hurry = True  # whoever was refused should know the load at once
        if not self._waiting:
            self._loop.call_soon(self.flush)
        self._waiting.setdefault(peer, []).append(answer)

    def flush(self) -> None:
        """Send what waits, now."""
        waiting, self._waiting = self._waiting, {}
        for peer, answers in waiting.items():
            parts = [answers[at : at + _MOST] for at in range(0, len(answers), _MOST)]
            sent = all(self._send(peer, part[0] if len(part) == 1 else Answers(part)) for part in parts)
            if not sent and peer in self._peers:
                self._peers.discard(peer)
                self._on_gone(peer)

    def _send(self, peer: bytes, message: AgentToEntry) -> bool:
        """False when it is behind neither door."""
        return (self._door is not None and self._door.send(peer, message)) or self._server.send(peer, message)

    def tell_room(self, loads: list[Load], now: float) -> None:
        """Push the load to every entry when it changed enough; call every ROOM_SECONDS or so."""
        quiet = now - self._told_at
        if quiet < max(ROOM_SECONDS, len(self._peers) / MOST_A_SECOND):
            return
        steady = quiet >= STEADY_SECONDS and any(load.tokens for load in loads)
        if not (steady or self._hurry or worth_telling(self._told, loads)):
            return
        self._told, self._told_at, self._hurry = loads, now, False
        message = Room(loads)
        for peer in list(self._peers):
            self.send(peer, message)

    def close(self) -> None:
        self._server.close()
        if self._door is not None:
            self._door.close()
        if self._directory is not None:
            with contextlib.suppress(OSError):  # others have something in it
                self._directory.rmdir()


def _opened(door: Path, on_message: Callable[[bytes, Any], None]) -> local.Server | None:
    """None when it cannot be: nobody needs it. What dead agents of this task left beside it goes."""
    for old in door.parent.glob(f"{door.name.partition('.')[0]}.*.door"):
        old.unlink(missing_ok=True)
    try:
        return local.Server(door, EntryToAgent, on_message)
    except OSError as error:
        log.warning("entries of this node come over the network: %s: %s", door, error)
        return None
