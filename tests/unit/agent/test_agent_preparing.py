"""Requests prepared beside the loop: what was given up meanwhile never begins, the rest runs as others do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from exahpc.agent.prepared import Prepared
from exahpc.agent.preparing import Preparing
from exahpc.errors import RequestError
from exahpc.wire.messages import Busy, Failed, ReplicaHello, Submit
from tests.unit.agent.test_agent_relay import CONTEXT, P, Q, admits, relay, submit, told

OUTCOME = RequestError("no matter what")


class Rig:
    """Work waits until `go` is set. began: (peer, request, attempt) that were handed in, in order."""

    def __init__(self) -> None:
        self.began: list[tuple[bytes, str, int]] = []
        self.worked: list[str] = []
        self.started, self.go = threading.Event(), threading.Event()
        self.preparing = Preparing(self._ready)

    def _ready(self, peer: bytes, message: Submit, found: Prepared | RequestError | None) -> None:
        assert found in (OUTCOME, None)
        self.began.append((peer, message.request, message.attempt))

    def begin(self, peer: bytes, name: str, attempt: int = 1) -> None:
        def work() -> RequestError:
            self.started.set()
            assert self.go.wait(60)
            self.worked.append(name)
            return OUTCOME

        self.preparing.begin(peer, submit(name, attempt=attempt), work)

    async def finish(self) -> None:
        """All that was begun is through, and an ordinary one behind it."""
        self.go.set()
        self.begin(Q, "last")
        async with asyncio.timeout(60):
            while (Q, "last", 1) not in self.began:
                await asyncio.sleep(0.01)
        self.began.remove((Q, "last", 1))


async def turns() -> None:
    """The loop has done all that was due."""
    for _ in range(5):
        await asyncio.sleep(0)


def run(story: Callable[[Rig], Awaitable[Any]]) -> Rig:
    async def whole() -> Rig:
        rig = Rig()
        try:
            await story(rig)
        finally:
            rig.go.set()
            rig.preparing.close()
        return rig

    return asyncio.run(whole())


def test_requests_begin_in_the_order_in_which_they_came() -> None:
    async def story(rig: Rig) -> None:
        for name in "abc":
            rig.begin(P, name)
        await turns()
        assert rig.began == []  # the loop went on meanwhile
        await rig.finish()

    assert run(story).began == [(P, name, 1) for name in "abc"]


def test_what_was_cancelled_or_whose_entry_is_gone_never_begins() -> None:
    async def story(rig: Rig) -> None:
        rig.begin(P, "cancelled")
        rig.begin(P, "kept")
        rig.begin(Q, "gone")
        rig.preparing.cancel(P, "cancelled")
        rig.preparing.cancel(P, "unknown")
        rig.preparing.peer_gone(Q)
        await turns()
        await rig.finish()

    rig = run(story)
    assert rig.began == [(P, "kept", 1)]
    assert "gone" not in rig.worked  # nobody computes for it either


def test_a_newer_attempt_takes_the_place_of_an_older_one_also_where_there_is_nothing_to_do() -> None:
    async def story(rig: Rig) -> None:
        rig.begin(P, "a")
        rig.begin(P, "a", attempt=2)
        rig.begin(P, "b")
        rig.preparing.begin(P, submit("b", attempt=2), None)
        assert rig.began == [(P, "b", 2)]
        await rig.finish()

    assert run(story).began == [(P, "b", 2), (P, "a", 2)]


def test_a_closed_one_hands_nothing_in() -> None:
    async def story(rig: Rig) -> None:
        rig.begin(P, "a")
        assert rig.started.wait(60)
        rig.preparing.close()
        rig.go.set()
        rig.preparing._worker.shutdown(wait=True)
        assert rig.worked == ["a"]
        await turns()

    assert run(story).began == []


# --- the relay's side ------------------------------------------------------------------------------------------


def test_a_prepared_request_runs_as_one_that_was_not() -> None:
    made, other = relay(), relay()
    work = made.preparation(submit())
    assert work is not None
    assert made.idle  # nothing has happened yet
    assert admits(made.submit(P, submit(), 0, work())) == admits(other.submit(P, submit(), 0)) != []
    work = made.preparation(submit("s", prompt="x" * CONTEXT))
    assert work is not None
    assert told(made.submit(P, submit("s", prompt="x" * CONTEXT), 0, work()), Failed)[0].status == 400


def test_nothing_is_prepared_where_there_is_no_room_and_a_replica_that_went_meanwhile_is_busy() -> None:
    made = relay(sequences=1)
    work = made.preparation(submit("a"))
    assert work is not None
    prepared = work()
    made.replica_up(ReplicaHello("p", 0, 8, 1, 256, CONTEXT, ""))  # born again
    assert told(made.submit(P, submit("a"), 0, prepared), Busy)
    assert made.submit(P, submit("b", incarnation=8), 0)
    assert made.preparation(submit("c", incarnation=8)) is None  # full
    assert made.preparation(submit("d", slot=3)) is None
    made.drain()
    assert made.preparation(submit("e", incarnation=8)) is None
