"""Laws of what entries are told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from exahpc.agent.entries import Entries, worth_telling
from exahpc.wire import link
from exahpc.wire.messages import AgentToEntry, Busy, Cancel, Room


@pytest.mark.parametrize(
    ("before", "now", "worth"),
    [
        ([], [], False),
        ([], [(0, 0)], True),
        ([(0, 5)], [], True),
        ([(0, 5)], [(1, 5)], True),
        ([(0, 0)], [(0, 1)], True),
        ([(0, 1)], [(0, 0)], True),
        ([(0, 100)], [(0, 100 + 64)], False),
        ([(0, 100)], [(0, 100 + 65)], True),
        ([(0, 8000)], [(0, 7000)], False),
        ([(0, 8000)], [(0, 6999)], True),
    ],
)
def test_small_changes_of_the_load_are_not_worth_a_message(
    before: list[tuple[int, int]], now: list[tuple[int, int]], worth: bool
) -> None:
    assert worth_telling(before, now) is worth


async def _until(check: Any) -> None:
    for _ in range(500):
        if check():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("waited in vain")


def test_room_is_told_at_once_after_busy_but_not_twice_in_a_moment_and_the_dead_are_noticed() -> None:
    async def story() -> None:
        ctx, key = link.context(), link.FleetKey.make()
        peers: list[bytes] = []
        gone: list[bytes] = []
        entries = Entries(ctx, key, "127.0.0.1", lambda peer, _: peers.append(peer), gone.append)
        heard: list[Any] = []
        entry = link.Client(ctx, key, lambda: entries.address, AgentToEntry, heard.append)
        await _until(lambda: entry.up)
        entry.send(Cancel("x"))
        await _until(lambda: peers)
        entries.tell_room([(0, 10)], 1.0)
        entries.tell_room([(0, 10)], 2.0)  # nothing changed
        entries.tell_room([(0, 900)], 2.01)
        entries.tell_room([(0, 0)], 2.03)  # too soon
        entries.send(peers[0], Busy("x", 1))
        entries.tell_room([(0, 901)], 2.10)  # a small change, but somebody was refused
        await _until(lambda: len(heard) >= 4)
        assert heard == [Room([(0, 10)]), Room([(0, 900)]), Busy("x", 1), Room([(0, 901)])]
        entry.close()
        await _until(lambda: entries.send(peers[0], Busy("y", 1)) or gone)
        entries.send(peers[0], Busy("y", 1))
        assert gone == [peers[0]], "told once"
        entries.close()

    asyncio.run(story())
