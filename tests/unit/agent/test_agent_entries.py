"""Laws of what entries are told."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from exahpc.agent.entries import Entries, worth_telling
from exahpc.wire import link, local
from exahpc.wire.messages import AgentToEntry, Answers, Busy, Cancel, Done, Load, Room


@pytest.mark.parametrize(
    ("before", "now", "worth"),
    [
        ([], [], False),
        ([], [Load(0, 0)], True),
        ([Load(0, 5)], [], True),
        ([Load(0, 5)], [Load(1, 5)], True),
        ([Load(0, 0)], [Load(0, 1)], True),
        ([Load(0, 1)], [Load(0, 0)], True),
        ([Load(0, 100)], [Load(0, 100 + 64)], False),
        ([Load(0, 100)], [Load(0, 100 + 65)], True),
        ([Load(0, 8000)], [Load(0, 7000)], False),
        ([Load(0, 8000)], [Load(0, 6999)], True),
        ([Load(0, 9, 1)], [Load(0, 9, 5)], False),
        ([Load(0, 9, 1)], [Load(0, 9, 6)], True),
        ([Load(0, 9, 80)], [Load(0, 9, 69)], True),
        ([Load(0, 9, 1, 0.5)], [Load(0, 9, 1, 0.59)], False),
        ([Load(0, 9, 1, 0.5)], [Load(0, 9, 1, 0.61)], True),
    ],
)
def test_small_changes_of_the_load_are_not_worth_a_message(
    before: list[Load], now: list[Load], worth: bool
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

        def hear(message: Any) -> None:
            heard.extend(message.answers if isinstance(message, Answers) else [message])

        entry = link.Client(ctx, key, lambda: entries.address, AgentToEntry, hear)
        await _until(lambda: entry.up)
        entry.send(Cancel("x"))
        await _until(lambda: peers)
        entries.tell_room([Load(0, 10)], 1.0)
        entries.tell_room([Load(0, 10)], 1.5)  # nothing changed
        entries.tell_room([Load(0, 900)], 1.51)
        entries.tell_room([Load(0, 0)], 1.53)  # too soon
        entries.send(peers[0], Busy("x", 1))
        entries.tell_room([Load(0, 901)], 1.6)  # a small change, but somebody was refused
        entries.tell_room([Load(0, 901)], 2.7)  # steady
        entries.tell_room([Load(0, 901)], 3.7)  # still, but what was told is forgotten one day
        entries.tell_room([Load(0, 0)], 3.8)
        entries.tell_room([Load(0, 0)], 9.0)  # nothing to do is told once
        told: list[Any] = [Room([Load(0, tokens)]) for tokens in (10, 900, 901, 901, 0)]
        told.insert(2, Busy("x", 1))
        await _until(lambda: len(heard) >= len(told))
        assert heard == told
        second: list[Any] = []
        other = link.Client(ctx, key, lambda: entries.address, AgentToEntry, second.append)
        await _until(lambda: other.up)
        other.send(Cancel("z"))
        await _until(lambda: len(peers) == 2)
        entries.tell_room([Load(0, 0)], 10.0)  # nothing new, but for a newcomer
        await _until(lambda: second)
        other.close()
        entry.close()
        await _until(lambda: entries.send(peers[0], Busy("y", 1)) or gone)
        entries.send(peers[0], Busy("y", 1))
        assert gone == [peers[0]], "told once"
        entries.close()

    asyncio.run(story())


def test_what_one_turn_of_the_loop_has_for_an_entry_leaves_in_one_message_in_order() -> None:
    async def story() -> None:
        ctx, key = link.context(), link.FleetKey.make()
        peers: list[bytes] = []
        entries = Entries(ctx, key, "127.0.0.1", lambda peer, _: peers.append(peer), lambda peer: None)
        heard: list[Any] = []
        entry = link.Client(ctx, key, lambda: entries.address, AgentToEntry, heard.append)
        await _until(lambda: entry.up)
        entry.send(Cancel("x"))
        await _until(lambda: peers)
        done = [Done(f"r{number}", 1, b"", 1, 1) for number in range(300)]
        for one in done:
            entries.send(peers[0], one)
        await _until(lambda: len(heard) == 2)
        assert [len(message.answers) for message in heard] == [256, 44], "a message is bounded"
        assert [one for message in heard for one in message.answers] == done
        entries.send(peers[0], Busy("y", 1))
        entries.flush()
        await _until(lambda: len(heard) == 3)
        assert heard[2] == Busy("y", 1), "alone, it needs no envelope"
        entry.close()
        entries.close()

    asyncio.run(story())


def test_entries_of_this_node_come_through_the_door_and_others_over_the_network(tmp_path: Path) -> None:
    async def story() -> None:
        ctx, key, door = link.context(), link.FleetKey.make(), tmp_path / "a-0.12.door"
        (tmp_path / "a-0.9.door").touch()  # of an agent that was killed
        others = {
            "a-1.1.door",  # of another task
            "a-0-0.1.door",  # of a task of a pool named "a-0", and what belongs to its replicas
            "a-0.0.1.sock",
            "a-0.0.json",
        }
        for name in others:
            (tmp_path / name).touch()
        (tmp_path / "a-0.0.1.tmp").mkdir()
        heard: dict[bytes, Any] = {}
        gone: list[bytes] = []
        entries = Entries(ctx, key, "127.0.0.1", heard.__setitem__, gone.append, door)
        assert {path.name for path in tmp_path.iterdir()} == others | {"a-0.12.door", "a-0.0.1.tmp"}
        told: dict[str, list[Any]] = {"near": [], "far": []}
        near = local.Client(door, AgentToEntry, told["near"].append)
        far = link.Client(ctx, key, lambda: entries.address, AgentToEntry, told["far"].append)
        await _until(lambda: near.send(Cancel("near")))
        await _until(lambda: far.send(Cancel("far")))
        await _until(lambda: len(heard) == 2)
        for peer, message in heard.items():
            entries.send(peer, Busy(message.request, 1))
        entries.tell_room([Load(0, 10)], 1.0)
        await _until(lambda: all(told.values()))
        for name, messages in told.items():
            assert messages == [Answers([Busy(name, 1), Room([Load(0, 10)])])]
        near.close()
        await _until(lambda: entries.tell_room([Load(0, len(gone))], 9.0) or gone or entries.flush())
        assert [heard[peer] for peer in gone] == [Cancel("near")]
        far.close()
        entries.close()
        assert not door.exists()

    asyncio.run(story())


def test_the_last_one_removes_the_directory_of_the_doors(tmp_path: Path) -> None:
    async def story() -> None:
        key, room = link.FleetKey.make(), tmp_path / "room"
        room.mkdir()
        doors = [room / f"a-{task}.1.door" for task in (0, 1)]
        first, last = (
            Entries(link.context(), key, "127.0.0.1", lambda peer, message: None, print, door) for door in doors
        )
        first.close()
        assert list(room.iterdir()) == doors[1:]
        last.close()
        assert not room.exists()

    asyncio.run(story())


def test_a_door_that_cannot_be_opened_is_missed_by_nobody(tmp_path: Path) -> None:
    async def story() -> None:
        ctx, key, heard = link.context(), link.FleetKey.make(), list[Any]()
        door = tmp_path / ("x" * 200)
        entries = Entries(ctx, key, "127.0.0.1", lambda peer, message: heard.append(message), print, door)
        entry = link.Client(ctx, key, lambda: entries.address, AgentToEntry, print)
        await _until(lambda: entry.send(Cancel("x")))
        await _until(lambda: heard)
        entry.close()
        entries.close()

    asyncio.run(story())
