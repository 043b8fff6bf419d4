"""Laws of the way through the agent, with a relay and a lease worker that only take notes."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from typing import Any, cast

from exahpc.agent.actions import RowEnded, RowLost, ToPeer, ToReplica
from exahpc.agent.leases import LeaseWorker, Row
from exahpc.agent.preparing import LONG_BODY
from exahpc.agent.relay import Relay
from exahpc.agent.traffic import Traffic
from exahpc.wire import link
from exahpc.wire.messages import (
    Abort,
    AgentToEntry,
    Busy,
    Cancel,
    LeaseGrant,
    LeaseProgress,
    Load,
    ReplicaHello,
    Submit,
    Tokens,
)


class NotedRelay:
    until = math.inf

    def __init__(self) -> None:
        self.places: dict[int, int] = {}
        self.rows: list[tuple[str, int]] = []
        self.calls: list[str] = []
        self.next: list[Any] = []

    def _answer(self, call: str) -> list[Any]:
        self.calls.append(call)
        answer, self.next = self.next, []
        return answer

    def replica_up(self, hello: ReplicaHello) -> list[Any]:
        return self._answer(f"up {hello.slot}")

    def replica_gone(self, slot: int, *, own_exit: bool, story: str = "") -> list[Any]:
        return self._answer(f"gone {slot} {own_exit}")

    def peer_gone(self, peer: bytes) -> list[Any]:
        return self._answer("peer gone")

    def tokens(self, slot: int, message: Tokens, now: float) -> list[Any]:
        return self._answer(f"tokens {slot}")

    def cancel(self, peer: bytes, request: str) -> list[Any]:
        self.peer = peer
        return self._answer(f"cancel {request}")

    def preparation(self, message: Submit) -> Callable[[], Any]:
        return lambda: f"prepared {message.request} in {threading.current_thread().name}"

    def submit(self, peer: bytes, message: Submit, now: float, found: Any = None) -> list[Any]:
        self.peer = peer
        return self._answer(f"submit {message.request}: {found}")

    def flush(self, now: float, *, everything: bool) -> list[Any]:
        self.calls.append("flush")
        if everything or now >= self.until:
            self.until = math.inf
        return []

    def drain(self) -> None:
        self.calls.append("drain")

    def stop_rows(self) -> list[Any]:
        return [RowLost(key, False) for key, _ in self.rows]

    def room(self) -> list[Load]:
        return [Load(0, 0), Load(1, 7)]

    def free(self, slot: int) -> int:
        return self.places[slot] - sum(at == slot for _, at in self.rows)

    def row(
        self, key: str, kind: str, body: bytes, seed: int, slot: int, now: float, created: int, *, alone: bool
    ) -> list[Any]:
        self.rows.append((key, slot))
        return []


class NotedWorker:
    busy = True

    def __init__(self, rows: int) -> None:
        self.ready = [Row(f"1.{i}", "chat", b"{}", i) for i in range(rows)]
        self.notes: list[Any] = []
        self.leases: list[int] = []

    def next_rows(self, n: int) -> list[Row]:
        taken, self.ready = self.ready[:n], self.ready[n:]
        return taken

    def wanted(self, free: int) -> int:
        return free

    def ended(self, key: str, status: int, *rest: Any) -> None:
        self.notes.append((key, status))

    def lost(self, key: str, own_exit: bool) -> None:
        self.notes.append((key, own_exit))

    def drain(self) -> None:
        self.notes.append("drain")

    def grant(self, message: LeaseGrant) -> None:
        self.notes.append(message)

    async def sync(self) -> list[LeaseProgress]:
        return []


class Rig:
    def __init__(self, places: dict[int, int], rows: int) -> None:
        self.relay, self.worker = NotedRelay(), NotedWorker(rows)
        self.relay.places = places
        self.sent: list[tuple[int, Any]] = []
        self.asked: list[int] = []
        self.loop = asyncio.get_running_loop()
        self.ctx, self.key = link.context(), link.FleetKey.make()
        self.traffic = Traffic(
            self.ctx,
            self.key,
            "127.0.0.1",
            cast(Relay, self.relay),
            cast(LeaseWorker, self.worker),
            lambda slot, message: self.sent.append((slot, message)),
            self.asked.append,
        )
        for slot in places:
            self.traffic.serve(ReplicaHello("a", slot, 1, 8, 100, 100, ""))


def run(places: dict[int, int], rows: int, check: Callable[[Rig], Any]) -> None:
    async def story() -> None:
        rig = Rig(places, rows)
        try:
            await check(rig)
        finally:
            rig.traffic.close()

    asyncio.run(story())


def test_few_rows_are_dealt_over_all_replicas_and_free_places_ask_for_more() -> None:
    async def check(rig: Rig) -> None:
        rig.traffic.flush()
        assert sorted(slot for _, slot in rig.relay.rows) == [0, 0, 1, 1]
        assert rig.asked == [6]

    run({0: 5, 1: 5}, 4, check)


def test_no_more_rows_are_begun_than_there_are_places() -> None:
    async def check(rig: Rig) -> None:
        rig.traffic.flush()
        rig.traffic.flush()
        assert sorted(slot for _, slot in rig.relay.rows) == [0, 0, 0, 1]
        assert len(rig.worker.ready) == 96

    run({0: 3, 1: 1}, 100, check)


def test_a_replica_that_was_lost_is_offered_nothing() -> None:
    async def check(rig: Rig) -> None:
        rig.traffic.lost(0, own_exit=True)
        rig.traffic.flush()
        assert {slot for _, slot in rig.relay.rows} == {1}
        assert "gone 0 True" in rig.relay.calls

    run({0: 3, 1: 3}, 100, check)


def test_a_closed_intake_hands_rows_back_and_takes_no_grant() -> None:
    async def check(rig: Rig) -> None:
        rig.traffic.flush()
        rig.traffic.close_intake()
        assert rig.worker.notes == ["drain", *((key, False) for key, _ in rig.relay.rows)]
        begun = len(rig.relay.rows)
        rig.traffic.grant(LeaseGrant(1, 1, "b", "/f", 0, 9))
        rig.traffic.flush()
        assert (len(rig.relay.rows), rig.worker.notes[-1]) == (begun, (rig.relay.rows[-1][0], False))

    run({0: 2}, 9, check)


def test_each_decision_of_the_relay_reaches_its_place() -> None:
    async def check(rig: Rig) -> None:
        heard: list[Any] = []
        entry = link.Client(rig.ctx, rig.key, lambda: rig.traffic.address, AgentToEntry, heard.append)
        while not entry.up:
            await asyncio.sleep(0.01)
        entry.send(Cancel("r"))
        while "cancel r" not in rig.relay.calls:
            await asyncio.sleep(0.01)
        peer = rig.relay.peer
        rig.relay.next = [
            ToReplica(0, Abort(3)),
            RowEnded("1.1", 200, b"", 1, 1),
            RowLost("1.2", True),
            ToPeer(peer, Busy("r", 1)),
        ]
        rig.traffic.tokens(0, Tokens([], []))
        while not heard:
            await asyncio.sleep(0.01)
        assert rig.sent == [(0, Abort(3))]
        assert rig.worker.notes == [("1.1", 200), ("1.2", True)]
        assert heard == [Busy("r", 1)]
        assert rig.traffic.tick() == frozenset({1}), "slots with work in flight"
        entry.close()

    run({0: 0, 1: 0}, 0, check)


def test_a_long_request_is_prepared_in_a_thread_and_short_ones_do_not_wait_for_it() -> None:
    async def check(rig: Rig) -> None:
        entry = link.Client(rig.ctx, rig.key, lambda: rig.traffic.address, AgentToEntry, lambda message: None)
        while not entry.up:
            await asyncio.sleep(0.01)
        for name, size in (("long", LONG_BODY + 1), ("short", LONG_BODY), ("left", LONG_BODY + 1)):
            entry.send(Submit(name, 1, 0, 1, "completion", b" " * size, False, 0, 0))
        entry.send(Cancel("left"))
        wanted = {"submit long: prepared long in prepare_0", "submit short: None", "cancel left"}
        while not wanted <= set(rig.relay.calls):
            await asyncio.sleep(0.01)
        entry.close()

    run({0: 0}, 0, check)


def test_a_burst_of_messages_is_flushed_once() -> None:
    async def check(rig: Rig) -> None:
        await asyncio.sleep(0.05)
        before = rig.relay.calls.count("flush")
        for _ in range(20):
            rig.traffic.tokens(0, Tokens([], []))
        await asyncio.sleep(0.05)
        assert rig.relay.calls.count("flush") == before + 1

    run({0: 0}, 0, check)


def test_frames_that_wait_are_told_in_time_without_another_message() -> None:
    async def check(rig: Rig) -> None:
        rig.relay.until = until = rig.loop.time() + 0.01
        rig.traffic.tokens(0, Tokens([], []))
        while rig.relay.until < math.inf:
            await asyncio.sleep(0.001)
        assert rig.loop.time() >= until

    run({0: 0}, 0, check)


def test_when_all_is_to_be_told_nothing_waits() -> None:
    async def check(rig: Rig) -> None:
        rig.relay.until = 1e12
        rig.traffic.flush()
        assert rig.relay.until == math.inf

    run({0: 0}, 0, check)
