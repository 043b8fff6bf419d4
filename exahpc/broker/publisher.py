"""Pushes the fleet table to the entries: on every change, but neither too often nor too early."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from exahpc.broker.entries import Entries
from exahpc.broker.fleet import Fleet
from exahpc.wire.messages import FleetTable, Message

PACE = 0.1  # seconds between two tables, so that 3,072 replicas coming up are not 3,072 tables
TABLES_A_SECOND = 500  # to all entries together: with one on each of 256 nodes, twice a second (40 MB/s in all)
DELAY = 0.02  # changes that arrive together travel together


class Publisher:
    """send: to one peer, False when it is gone; hold: seconds in which nothing is told, because a broker that
    knows nothing of a running fleet must not empty its entries' tables."""

    def __init__(
        self, fleet: Fleet, entries: Entries, send: Callable[[bytes, Message], bool], hold: float = 0.0
    ) -> None:
        self._fleet, self._entries, self._send = fleet, entries, send
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._next = self._quiet_until = self._loop.time() + hold
        self._fleet.table()  # what was carried over is version 1
        if hold:
            self._timer = self._loop.call_later(hold, self._publish_anyhow)

    def greet(self, peer: bytes) -> None:
        """A new entry gets the table at once."""
        if self._loop.time() >= self._quiet_until:
            self._send(peer, self._fleet.current())

    def soon(self) -> None:
        """Something may have changed."""
        if self._timer is None and self._fleet.dirty:
            self._timer = self._loop.call_later(max(DELAY, self._next - self._loop.time()), self._publish)

    def _publish(self) -> None:
        self._push(self._fleet.table())

    def _publish_anyhow(self) -> None:
        self._push(self._fleet.table() or self._fleet.current())

    def _push(self, table: FleetTable | None) -> None:
        peers = self._entries.peers()
        self._timer = None
        self._next = self._loop.time() + max(PACE, len(peers) / TABLES_A_SECOND)
        if table is not None:
            for peer in peers:
                if not self._send(peer, table):
                    self._entries.gone(peer)
