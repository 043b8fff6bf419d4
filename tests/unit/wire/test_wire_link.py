"""Laws of the links, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import zmq

from exahpc.errors import LinkError
from exahpc.wire import link
from exahpc.wire import messages as m

KEY = link.FleetKey.make()


class Pair:
    """A server that echoes StatusQuery as Accepted, and what happened."""

    def __init__(self, key: link.FleetKey = KEY) -> None:
        self.peers: list[bytes] = []
        self.got: list[Any] = []
        self.garbage: list[str] = []
        self.answers: list[Any] = []
        self.events: list[str] = []
        self.key = key
        self.server = self.serve()

    def serve(self) -> link.Server:
        return link.Server(
            link.context(),
            KEY,
            "127.0.0.1",
            m.ToBroker,
            self.on,
            on_garbage=lambda peer, why: self.garbage.append(why),
        )

    def on(self, peer: bytes, message: Any) -> None:
        self.peers.append(peer)
        self.got.append(message)
        self.server.send(peer, m.Accepted())

    def client(self, ctx: zmq.Context[zmq.Socket[bytes]]) -> link.Client:
        return link.Client(
            ctx,
            self.key,
            lambda: self.server.address,
            m.BrokerToClient,
            self.answers.append,
            on_up=lambda: self.events.append("up"),
            on_lost=lambda: self.events.append("lost"),
        )


async def until(check: Callable[[], Any], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not check():
            await asyncio.sleep(0.005)


def test_messages_arrive_whole_in_order_and_answers_come_back() -> None:
    async def run() -> None:
        pair = Pair()
        client = pair.client(link.context())
        await until(lambda: client.up)
        for number in range(2000):
            assert client.send(m.BatchQuery(str(number)))
        await until(lambda: len(pair.answers) == 2000)
        assert [message.batch for message in pair.got] == [str(n) for n in range(2000)]
        client.close()
        pair.server.close()

    asyncio.run(run())


def test_a_client_with_another_key_is_never_up_and_gets_no_byte() -> None:
    async def run() -> None:
        pair = Pair(key=link.FleetKey.make())
        client = pair.client(link.context())
        await asyncio.sleep(0.5)
        assert not client.up
        assert not client.send(m.StatusQuery())
        assert (pair.got, pair.answers, pair.events) == ([], [], [])
        client.close()
        pair.server.close()

    asyncio.run(run())


def test_a_client_without_any_key_or_with_only_the_public_one_reaches_nobody() -> None:
    async def run() -> None:
        pair = Pair()
        ctx = zmq.Context()
        plain, stranger = ctx.socket(zmq.DEALER), ctx.socket(zmq.DEALER)
        own_public, own_secret = zmq.curve_keypair()
        stranger.curve_publickey, stranger.curve_secretkey = own_public, own_secret
        stranger.curve_serverkey = KEY.public.encode()
        for sock in (plain, stranger):
            sock.linger = 0
            sock.connect(pair.server.address)
            sock.send(msgspec.msgpack.encode(m.StatusQuery()))
        await asyncio.sleep(0.5)
        assert not pair.got
        assert not pair.garbage
        for sock in (plain, stranger):
            assert sock.poll(0) == 0
            sock.close()
        ctx.term()
        pair.server.close()

    asyncio.run(run())


def test_a_raw_tcp_peer_sees_only_the_protocols_greeting() -> None:
    async def run() -> None:
        pair = Pair()
        host, port = pair.server.address.removeprefix("tcp://").split(":")
        with socket.create_connection((host, int(port)), timeout=2) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\n\r\n" + b"x" * 100)
            await asyncio.sleep(0.3)
            seen = b""
            with contextlib.suppress(ConnectionResetError):
                seen = sock.recv(4096)
        assert len(seen) <= 64
        assert KEY.public.encode() not in seen
        assert not pair.got
        pair.server.close()

    asyncio.run(run())


def test_a_lost_connection_is_reported_once_and_the_next_one_is_a_new_peer() -> None:
    async def run() -> None:
        pair = Pair()
        client = pair.client(link.context())
        await until(lambda: client.up)
        client.send(m.StatusQuery())
        await until(lambda: pair.answers)
        pair.server.close()
        await until(lambda: pair.events == ["up", "lost"])
        assert not client.send(m.StatusQuery())
        await asyncio.sleep(0.3)
        pair.server = pair.serve()
        await until(lambda: client.up)
        client.send(m.StatusQuery())
        await until(lambda: len(pair.answers) == 2)
        assert pair.events == ["up", "lost", "up"]
        assert len(set(pair.peers)) == 2
        client.close()
        pair.server.close()

    asyncio.run(run())


def test_a_send_to_a_peer_that_left_says_so() -> None:
    async def run() -> None:
        pair = Pair()
        client = pair.client(link.context())
        await until(lambda: client.up)
        client.send(m.StatusQuery())
        await until(lambda: pair.answers)
        client.close()
        await until(lambda: not pair.server.send(pair.peers[0], m.Accepted()))
        pair.server.close()

    asyncio.run(run())


def test_garbage_from_a_member_is_dropped_and_reported_and_the_link_goes_on() -> None:
    async def run() -> None:
        pair = Pair()
        ctx = zmq.Context()
        sock = ctx.socket(zmq.DEALER)
        sock.linger = 0
        sock.curve_publickey, sock.curve_secretkey = KEY.public.encode(), KEY.secret.encode()
        sock.curve_serverkey = KEY.public.encode()
        sock.connect(pair.server.address)
        for body in (b"", b"\xc1", b"\x91\xa4Nope", msgspec.msgpack.encode(["StatusQuery", 1, 2]), b"\x00" * 1000):
            sock.send(body)
        sock.send(msgspec.msgpack.encode(m.StatusQuery()))
        await until(lambda: pair.got)
        assert len(pair.garbage) >= 4
        sock.close()
        ctx.term()
        pair.server.close()

    asyncio.run(run())


def test_asking_nobody_is_a_link_error_in_time() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        with pytest.raises(LinkError, match="is the head running"):
            link.ask(KEY, f"tcp://127.0.0.1:{sock.getsockname()[1]}", m.StatusQuery(), m.BrokerToClient, 0.3)


def test_a_key_never_shows_its_secret() -> None:
    assert KEY.secret not in f"{KEY} {KEY!r}"


def test_clients_that_lost_a_server_come_back_at_different_times_and_ever_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Thousands of agents that knock in step would keep a new broker from ever answering."""

    async def run() -> None:
        waits: list[float] = []
        loop = asyncio.get_running_loop()
        real = loop.call_later

        def noted(seconds: float, callback: Callable[..., Any], *arguments: Any) -> asyncio.TimerHandle:
            if isinstance(getattr(callback, "__self__", None), link.Client):
                waits.append(seconds)
                seconds = 0.0
            return real(seconds, callback, *arguments)

        monkeypatch.setattr(loop, "call_later", noted)
        clients = [
            link.Client(link.context(), KEY, lambda: None, m.ToBroker, print, longest_wait=2.0) for _ in range(20)
        ]
        await until(lambda: len(waits) >= 20 * 12)
        for client in clients:
            client.close()
        first, last = waits[20:40], waits[-20:]
        assert len(set(first)) == len(set(last)) == 20
        assert max(first) <= 0.1
        assert all(1.0 <= wait <= 2.0 for wait in last)

    asyncio.run(run())


def test_too_few_descriptors_are_raised_or_refused_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(100, 1000)]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda kind, wanted: limits.append(wanted))
    link.require_descriptors(100)
    assert limits == [(100, 1000)]
    link.require_descriptors(500)
    assert limits[-1] == (500, 1000)
    with pytest.raises(LinkError, match="needs 1001 open files but the hard limit is 1000"):
        link.require_descriptors(1001)
