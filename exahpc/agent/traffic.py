"""Requests and batch rows on their way through the agent: performs what the relay decides.

One turn of the loop: messages of entries and replicas are handled one by one; after the burst, the frames that are
due go out and free places are offered to batch rows.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, assert_never

import zmq

from exahpc.agent import relay
from exahpc.agent.actions import Served
from exahpc.agent.entries import Entries
from exahpc.agent.leases import LeaseWorker
from exahpc.agent.prepared import Prepared
from exahpc.agent.preparing import LONG_BODY, Preparing
from exahpc.agent.relay import Relay
from exahpc.errors import RequestError
from exahpc.openai.body import Kind
from exahpc.wire.link import FleetKey
from exahpc.wire.messages import (
    Cancel,
    LeaseGrant,
    LeaseProgress,
    LeaseRevoke,
    Message,
    NoRoom,
    ReplicaHello,
    Service,
    Submit,
    Tokens,
)

_SHORTEST_WAIT = 0.001  # uvloop's timers know no shorter one: the loop would turn round and round


class Traffic:
    """to_replica: sends to the replica in a slot; ask: asks the broker for so many rows."""

    def __init__(
        self,
        ctx: zmq.Context[zmq.Socket[bytes]],
        key: FleetKey,
        host: str,
        relay: Relay,
        worker: LeaseWorker,
        to_replica: Callable[[int, Message], None],
        ask: Callable[[int], None],
        door: Path | None = None,
    ) -> None:
        """door: see `Entries`."""
        self._relay, self._worker = relay, worker
        self._to_replica, self._ask = to_replica, ask
        self._loop = asyncio.get_running_loop()
        self._entries = Entries(ctx, key, host, self._entry_said, self._entry_gone, door)
        self._preparing = Preparing(self._prepared)
        self._serving: dict[int, int] = {}  # slot -> incarnation
        self._feeding = True
        self._flushing = False
        self._next: asyncio.TimerHandle | None = None
        self.granted = asyncio.Event()
        """Set when rows may wait to be read: do not wait long with the next `sync`."""

    @property
    def address(self) -> str:
        """Where entries connect."""
        return self._entries.address

    @property
    def leases(self) -> list[int]:
        return self._worker.leases

    # --- replicas come and go -----------------------------------------------------------------------------

    def serve(self, hello: ReplicaHello) -> None:
        """The replica takes traffic from now on."""
        self._serving[hello.slot] = hello.incarnation
        self._act(self._relay.replica_up(hello))
        self._flush_soon()

    def lost(self, slot: int, *, own_exit: bool, story: str = "") -> None:
        """What it ran goes back to where it came from."""
        self._act(self._relay.replica_gone(slot, own_exit=own_exit, story=story))
        self._serving.pop(slot, None)
        self._flush_soon()

    def close_intake(self) -> None:
        """Nothing new: requests are told Busy, rows are handed back; the requests that run go on."""
        self._feeding = False
        self._worker.drain()
        self._relay.drain()
        self._act(self._relay.stop_rows())

    def service(self, slot: int) -> Service:
        """How well and how fast a replica serves."""
        return self._relay.service(slot, self._loop.time())

    # --- messages -----------------------------------------------------------------------------------------

    def tokens(self, slot: int, message: Tokens) -> None:
        self._act(self._relay.tokens(slot, message, self._loop.time()))
        self._flush_soon()

    def no_room(self, slot: int, message: NoRoom) -> None:
        self._act(self._relay.no_room(slot, message))
        self._flush_soon()

    def grant(self, message: LeaseGrant) -> None:
        if self._feeding:
            self._worker.grant(message)
            self.granted.set()

    def revoke(self, message: LeaseRevoke) -> None:
        for key in self._worker.revoke(message.lease, message.soft):
            self._act(self._relay.cancel_row(key))
        self._flush_soon()

    def _entry_said(self, peer: bytes, message: Any) -> None:
        match message:
            case Submit() if len(message.body) > LONG_BODY:
                self._preparing.begin(peer, message, self._relay.preparation(message))
            case Submit():
                self._act(self._relay.submit(peer, message, self._loop.time()))
            case Cancel(request):
                self._preparing.cancel(peer, request)
                self._act(self._relay.cancel(peer, request))
        self._flush_soon()

    def _prepared(self, peer: bytes, message: Submit, found: Prepared | RequestError | None) -> None:
        self._act(self._relay.submit(peer, message, self._loop.time(), found))
        self._flush_soon()

    def _entry_gone(self, peer: bytes) -> None:
        self._preparing.peer_gone(peer)
        self._act(self._relay.peer_gone(peer))

    def _act(self, actions: Iterable[relay.Action]) -> None:
        for action in actions:
            match action:
                case relay.ToPeer(peer, message):
                    self._entries.send(peer, message)
                case relay.ToReplica(slot, message):
                    self._to_replica(slot, message)
                case relay.RowEnded():
                    tokens = action.prompt_tokens, action.completion_tokens
                    served = self._placed(action.served)
                    self._worker.ended(action.key, action.status, action.body, *tokens, served)
                case relay.RowLost(key, own_exit):
                    self._worker.lost(key, own_exit)
                case _:
                    assert_never(action)

    def _placed(self, served: Served | None) -> Served | None:
        """With incarnation and Unix times."""
        if served is None:
            return None
        shift = time.time() - self._loop.time()
        return Served(
            served.slot, served.started + shift, served.first_token + shift, served.cached_tokens,
            served.token_ids, self._serving.get(served.slot, 0),
        )  # fmt: skip

    # --- time ---------------------------------------------------------------------------------------------

    def tick(self) -> frozenset[int]:
        """Call every 50 ms: sends what is due. Returns the slots that have work in flight."""
        self._tell()
        if self._feeding:
            self._feed()
        room = self._relay.room()
        self._entries.tell_room(room, self._loop.time())
        return frozenset(load.slot for load in room if load.tokens)

    def _flush_soon(self) -> None:
        """Flush once after the burst that is being handled, so that frames of one link share a message."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._after_burst)

    def _after_burst(self) -> None:
        self._flushing = False
        self._tell()
        if self._feeding and self._worker.busy:  # else the next tick asks for rows
            self._feed()

    def _tell(self, *, everything: bool = False) -> None:
        """Send the frames that are due, and wake when the next ones are (under load they wait: see `untold`)."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
        now = self._loop.time()
        self._act(self._relay.flush(now, everything=everything))
        until = self._relay.until
        if until < math.inf:
            self._next = self._loop.call_later(max(_SHORTEST_WAIT, until - now), self._tell)

    def flush(self) -> None:
        """Send all there is to say, now, and offer free places to batch rows."""
        self._tell(everything=True)
        self._entries.flush()
        if self._feeding:
            self._feed()

    def _feed(self) -> None:
        """Deal rows to the replicas with the most free places, so that few rows still use all of them."""
        free = {slot: count for slot in self._serving if (count := self._relay.free(slot)) > 0}
        for row in self._worker.next_rows(sum(free.values())) if free else ():
            slot = max(free, key=free.__getitem__)
            free[slot] -= 1
            kind: Kind = "chat" if row.kind == "chat" else "completion"
            now, created = self._loop.time(), int(time.time())
            self._act(self._relay.row(row.key, kind, row.body, row.seed, slot, now, created, alone=row.alone))
        rows = self._worker.wanted(sum(free.values()))
        if rows:
            self._ask(rows)

    async def sync(self) -> list[LeaseProgress]:
        """Make ended rows durable, read granted ones; returns what the broker must know."""
        self.granted.clear()
        progress = await self._worker.sync()
        self._flush_soon()
        return progress

    def close(self) -> None:
        if self._next is not None:
            self._next.cancel()
        self._preparing.close()
        self._entries.close()
