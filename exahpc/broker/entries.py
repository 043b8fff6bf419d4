"""The entries that are connected to the broker: who they are and what they told last. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from exahpc.wire.messages import EntryBeat, EntryHello, EntryStatus

SILENCE_SECONDS = 10.0  # five of their beats


@dataclass
class _Entry:
    hello: EntryHello
    heard: float
    beat: EntryBeat


class Entries:
    """By connection. A new connection of the same entry replaces the old one."""

    def __init__(self) -> None:
        self._entries: dict[bytes, _Entry] = {}

    def hello(self, peer: bytes, message: EntryHello, now: float) -> list[bytes]:
        """Returns the connections that this one replaces."""
        who = (message.index, message.url)
        replaced = [other for other, e in self._entries.items() if (e.hello.index, e.hello.url) == who]
        for other in replaced:
            del self._entries[other]
        self._entries[peer] = _Entry(message, now, EntryBeat(0, 0, 0, 0, 0, 0))
        return replaced

    def beat(self, peer: bytes, message: EntryBeat, now: float) -> None:
        entry = self._entries.get(peer)
        if entry is not None:
            entry.beat, entry.heard = message, now

    def gone(self, peer: bytes) -> None:
        self._entries.pop(peer, None)

    def tick(self, now: float) -> None:
        for peer, entry in list(self._entries.items()):
            if now - entry.heard > SILENCE_SECONDS:
                del self._entries[peer]

    def peers(self) -> list[bytes]:
        return list(self._entries)

    def rows(self) -> list[EntryStatus]:
        """Those of the head first, then node by node."""
        rows = (
            EntryStatus(
                index=e.hello.index,
                url=e.hello.url,
                node=e.hello.node,
                in_flight=e.beat.in_flight,
                waiting=e.beat.waiting,
                done=e.beat.done,
                failed=e.beat.failed,
            )
            for e in self._entries.values()
        )
        return sorted(rows, key=lambda row: (row.node, row.url, row.index))
