"""Messages over a local socket: whole, in order, and what the ends of a connection show."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

from exahpc.wire import local
from exahpc.wire.channel import Channel, listening
from exahpc.wire.local import Client
from exahpc.wire.messages import Abort, NoRoom, StopReplica
from tests.unit.wire.test_wire_channel import pair

Heard = Abort | NoRoom | StopReplica


class Stand:
    """A client in a loop, what it tells, and a listener that it finds."""

    def __init__(self, path: Path) -> None:
        self.path, self.listener = path, listening(path)
        self.heard: list[Any] = []
        self.events: list[str] = []
        self.on_message: Callable[[Any], None] = self.heard.append
        self.client = Client(
            path,
            Heard,
            lambda message: self.on_message(message),
            on_up=lambda: self.events.append("up"),
            on_lost=lambda: self.events.append("lost"),
            longest_wait=0.05,
        )

    async def accepted(self) -> Channel:
        await self.until(lambda: self.events[-1:] == ["up"])
        return Channel(self.listener.accept()[0])

    @staticmethod
    async def until(check: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not check():
                await asyncio.sleep(0.005)

    def close(self) -> None:
        self.client.close()
        self.listener.close()


def run(path: Path, scene: Callable[[Stand], Any]) -> Stand:
    async def go() -> Stand:
        stand = Stand(path)
        try:
            await scene(stand)
        finally:
            stand.close()
        return stand

    return asyncio.run(go())


def test_a_lost_connection_is_told_once_and_opened_again(tmp_path: Path) -> None:
    async def scene(stand: Stand) -> None:
        first = await stand.accepted()
        first.send(msgspec.msgpack.encode(Abort(1)))
        first.close()
        await stand.until(lambda: "lost" in stand.events)
        second = await stand.accepted()
        assert stand.client.send(Abort(7))
        heard: list[bytes] = []
        await stand.until(lambda: heard.extend(second.receive()) or heard)
        assert heard == [msgspec.msgpack.encode(Abort(7))]
        second.close()

    stand = run(tmp_path / "s", scene)
    assert stand.heard == [Abort(1)]
    assert stand.events[:3] == ["up", "lost", "up"]


def test_nobody_there_means_that_nothing_is_sent_until_somebody_listens(tmp_path: Path) -> None:
    async def scene(stand: Stand) -> None:
        (await stand.accepted()).close()
        stand.listener.close()
        stand.path.unlink()
        await stand.until(lambda: not stand.client.send(Abort(1)))
        assert not stand.client.send(Abort(1))
        stand.listener = listening(stand.path)
        await stand.until(lambda: stand.client.send(Abort(2)))

    assert run(tmp_path / "s", scene).events[-1] == "up"


def test_what_is_no_message_is_passed_over(tmp_path: Path) -> None:
    async def scene(stand: Stand) -> None:
        channel = await stand.accepted()
        for body in (b"\xc1", b"", msgspec.msgpack.encode(Abort(3))):
            channel.send(body)
        await stand.until(lambda: stand.heard)
        channel.close()

    assert run(tmp_path / "s", scene).heard == [Abort(3)]


def test_messages_larger_than_a_socket_holds_pass_whole_in_both_directions(tmp_path: Path) -> None:
    words = [NoRoom(number, "x" * size) for number, size in enumerate((3_000_000, 1, 2_000_000, 0))]

    async def scene(stand: Stand) -> None:
        channel = await stand.accepted()
        assert all(stand.client.send(word) for word in words)
        heard: list[bytes] = []
        await stand.until(lambda: heard.extend(channel.receive()) or len(heard) == len(words))
        assert [msgspec.msgpack.decode(body, type=NoRoom) for body in heard] == words
        for body in heard:
            channel.send(body)
        await stand.until(lambda: channel.flush() or len(stand.heard) == len(words))
        channel.close()

    assert run(tmp_path / "s", scene).heard == words


def test_a_callback_that_fails_costs_the_messages_behind_it_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(stand: Stand) -> None:
        def take(message: Any) -> None:
            stand.heard.append(message)
            if message == Abort(1):
                raise msgspec.ValidationError("a defect")

        stand.on_message = take
        channel = await stand.accepted()
        for number in range(3):
            channel.send(msgspec.msgpack.encode(Abort(number)))
        await stand.until(lambda: len(stand.heard) == 3)
        channel.close()

    run(tmp_path / "s", scene)
    assert "a defect" in caplog.text


@pytest.mark.parametrize("count", [1, 3])
def test_a_callback_may_close_its_own_client(tmp_path: Path, count: int) -> None:
    async def scene(stand: Stand) -> None:
        def take(message: Any) -> None:
            stand.heard.append(message)
            stand.client.close()

        stand.on_message = take
        channel = await stand.accepted()
        for number in range(count):
            channel.send(msgspec.msgpack.encode(Abort(number)))
        await stand.until(lambda: stand.heard)
        await asyncio.sleep(0.05)
        channel.close()

    stand = run(tmp_path / "s", scene)
    assert stand.heard == [Abort(0)]
    assert stand.events == ["up"]


def test_a_server_speaks_to_each_of_its_peers_and_forgets_who_left(tmp_path: Path) -> None:
    async def story() -> None:
        peers: dict[Any, bytes] = {}
        server = local.Server(
            tmp_path / "s", Abort, lambda peer, message: peers.__setitem__(message.sequence, peer)
        )
        heard: list[list[Any]] = [[], []]
        clients = [Client(tmp_path / "s", NoRoom, words.append) for words in heard]
        for number, client in enumerate(clients):
            await Stand.until(lambda client=client, number=number: client.send(Abort(number)))
        await Stand.until(lambda: len(peers) == 2)
        for number, peer in peers.items():
            assert server.send(peer, NoRoom(number, "x"))
        await Stand.until(lambda: all(heard))
        assert heard == [[NoRoom(0, "x")], [NoRoom(1, "x")]]
        clients[0].close()
        await Stand.until(lambda: not server.send(peers[0], NoRoom(0, "y")))
        assert server.send(peers[1], NoRoom(1, "y"))
        assert not server.send(b"nobody", NoRoom(1, "y"))
        server.close()
        await Stand.until(lambda: not clients[1].send(Abort(1)))
        clients[1].close()
        assert not (tmp_path / "s").exists()

    asyncio.run(story())


def test_who_gives_no_sign_of_life_is_lost_and_who_only_has_nothing_to_say_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "LIFE_SECONDS", 0.4)

    async def story() -> None:
        server = local.Server(tmp_path / "living", Abort, lambda peer, message: None)
        listener = listening(tmp_path / "stopped")  # connects, as the kernel does for a stopped process
        events: list[str] = []
        clients = [
            Client(
                tmp_path / name,
                NoRoom,
                print,
                on_up=lambda name=name: events.append(f"{name} up"),
                on_lost=lambda name=name: events.append(f"{name} lost"),
                asks=asks,
            )
            for name, asks in (("living", True), ("stopped", True), ("stopped", False))
        ]
        await Stand.until(lambda: len(events) == 2)
        assert set(events) == {"living up", "stopped up"}, "the second one was not asked"
        assert not clients[1].send(Abort(1)), "nobody has answered yet"
        before_it_stopped = Channel(listener.accept()[0])
        before_it_stopped.send(b"")
        await Stand.until(lambda: len(events) == 3)
        assert clients[1].send(Abort(1))
        await Stand.until(lambda: len(events) == 4)
        await asyncio.sleep(0.5)  # it can be connected to, but there is no life in it
        assert events[2:] == ["stopped up", "stopped lost"]
        assert not clients[1].send(Abort(1))
        assert clients[0].send(Abort(1))
        assert clients[2].send(Abort(1)), "it was not asked"
        for client in clients:
            client.close()
        server.close()
        listener.close()

    asyncio.run(story())


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("size", [1, 150])
def test_the_end_of_one_that_died_before_it_had_read_all_is_noticed_behind_its_last_words(
    loop: Callable[[], asyncio.AbstractEventLoop], size: int
) -> None:
    async def story() -> None:
        a, b = pair()
        dying, events = Channel(a), list[bytes]()
        words = [b"%d" % number * 1000 for number in range(size)]
        sent = [word for word in words if dying.send(word) and not dying.unread]
        line = local.Line(b, bytes, events.append, lambda: events.append(b"over"))
        assert line.send(b"never read")
        dying.close()
        await Stand.until(lambda: b"over" in events)
        assert events == [*sent, b"over"]
        assert not line.send(b"x")

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(story())


def test_who_has_no_descriptor_left_tries_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, failures = socket.socket, [OSError(errno.EMFILE, "Too many open files")]

    def scarce(*args: Any, **keywords: Any) -> socket.socket:
        if failures:
            raise failures.pop()
        return made(*args, **keywords)

    async def scene(stand: Stand) -> None:
        monkeypatch.setattr(socket, "socket", scarce)
        (await stand.accepted()).close()

    assert run(tmp_path / "s", scene).events[0] == "up"
    assert not failures


@pytest.mark.parametrize("left", [False, True])
def test_where_nobody_listens_its_owner_is_told_if_it_wants_to_be(tmp_path: Path, left: bool) -> None:
    async def story() -> None:
        if left:
            listening(tmp_path / "s").close()
        refused: list[bool] = []
        client = Client(tmp_path / "s", NoRoom, print, on_refused=lambda: refused.append(True), longest_wait=0.01)
        await Stand.until(lambda: refused)
        await asyncio.sleep(0.05)
        assert refused == [True], "and asks no more"
        client.close()

    asyncio.run(story())
