"""Authenticated ZeroMQ links, drained from the raw file descriptor.

Both sides hold the deployment's one CURVE key pair: a server proves it to its clients, and ZAP lets in only
clients that hold it too. A `Client` takes a fresh identity for every connection, so whatever an old connection
still carries can never be mistaken for the new one; a lost connection is reported once through `on_lost` and
opened again with jittered backoff. A `Server` learns that a peer is gone when a send to it returns False.

Callbacks run in the asyncio loop and must not block.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
import zmq
import zmq.auth.thread
import zmq.utils.monitor

from exahpc.errors import LinkError
from exahpc.wire.messages import Message

HEARTBEAT_MS = 2000
HEARTBEAT_TIMEOUT_MS = 8000
MAX_MESSAGE_BYTES = 64 * 2**20
_DOMAIN = "exahpc"
T = TypeVar("T")
_BURST = 256  # messages handled before other callbacks of the loop get their turn
# pyzmq's enums as plain numbers: to it, they cost several times as much as the calls themselves
_EVENTS, _READABLE, _NOW = int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.NOBLOCK)
_NOW_AND_MORE, _HAS_MORE = int(zmq.NOBLOCK | zmq.SNDMORE), int(zmq.RCVMORE)


@dataclass(frozen=True)
class FleetKey:
    """The deployment's CURVE key pair (Z85 text). Whoever holds `secret` is a member of the deployment."""

    public: str
    secret: str

    @staticmethod
    def make() -> FleetKey:
        public, secret = zmq.curve_keypair()
        return FleetKey(public.decode(), secret.decode())

    def __repr__(self) -> str:  # never let a secret reach a log
        return f"FleetKey({self.public})"


def require_descriptors(wanted: int) -> None:
    """Raise the soft RLIMIT_NOFILE to `wanted`; a ROUTER that runs out of descriptors stalls without a word.

    Raises LinkError naming both limits when the hard limit is too low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise LinkError(
            f"this process needs {wanted} open files but the hard limit is {hard}: "
            f"ask the site to raise it (ulimit -Hn), or use fewer replicas per head"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def pause(failures: int, longest: float) -> float:
    """Seconds until the next attempt to connect: twice as long after each failure, and never the same for all."""
    doubled: float = min(longest, 0.05 * 2 ** min(failures, 10))
    return doubled * (0.5 + random.random() / 2)


def context() -> zmq.Context[zmq.Socket[bytes]]:
    """A ZeroMQ context with room for thousands of sockets."""
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    made.set(zmq.MAX_SOCKETS, 16384)
    return made


class _Members:
    """ZAP's answer to "may this client key connect?"."""

    def __init__(self, public: str) -> None:
        self._public = public.encode()

    def callback(self, domain: str, key: bytes) -> bool:
        return key == self._public


def _secure(sock: zmq.Socket[bytes], key: FleetKey) -> None:
    sock.curve_publickey = key.public.encode()
    sock.curve_secretkey = key.secret.encode()
    sock.linger = 0
    sock.maxmsgsize = MAX_MESSAGE_BYTES
    sock.set(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    sock.set(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
    sock.set(zmq.HEARTBEAT_TTL, HEARTBEAT_TIMEOUT_MS)
    sock.set(zmq.SNDHWM, 100_000)
    sock.set(zmq.RCVHWM, 100_000)


class _Pump(Generic[T]):
    """Calls `handle(receive(...))` for every message of a socket, from its raw descriptor.

    The descriptor is edge-triggered: after sends and after each burst the socket's events are looked at again, and
    before each message, too: an exception that says "nothing there" costs more.
    """

    def __init__(self, sock: zmq.Socket[bytes], receive: Callable[[int], T], handle: Callable[[T], None]) -> None:
        """receive: the socket's `recv` where messages have one frame, else its `recv_multipart`."""
        self._sock, self._receive, self._handle = sock, receive, handle
        self._loop = asyncio.get_running_loop()
        self._fd = int(sock.get(zmq.FD))
        self._scheduled = False
        self._closed = False
        self._loop.add_reader(self._fd, self.drain)
        self.look()

    def look(self) -> None:
        """Look at the events at the end of this turn of the loop: once for all that is sent in it."""
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._scheduled = False
        self.drain()

    def drain(self) -> None:
        """Handle what is there now, or the first part of it."""
        for _ in range(_BURST):
            if self._closed or not int(self._sock.get(_EVENTS)) & _READABLE:
                return
            self._handle(self._receive(_NOW))
        self.look()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._fd)


class Server:
    """A bound ROUTER. `address` is what peers connect to."""

    def __init__(
        self,
        ctx: zmq.Context[zmq.Socket[bytes]],
        key: FleetKey,
        host: str,
        messages: Any,
        on_message: Callable[[bytes, Any], None],
        *,
        on_garbage: Callable[[bytes, str], None] = lambda peer, why: None,
        port: int = 0,
    ) -> None:
        """host: the address to bind and to publish; messages: the union of message types that may arrive.

        port: tried first when not 0 (a restarted server's peers still knock there); a free one is taken otherwise.
        """
        self._decode = msgspec.msgpack.Decoder(messages).decode
        self._encode = msgspec.msgpack.Encoder().encode
        self._on_message, self._on_garbage = on_message, on_garbage
        self._last: Message | None = None
        self._body = b""
        self._guard = zmq.auth.thread.ThreadAuthenticator(ctx)
        self._guard.start()
        self._guard.configure_curve_callback(domain=_DOMAIN, credentials_provider=_Members(key.public))
        self._sock = ctx.socket(zmq.ROUTER)
        _secure(self._sock, key)
        self._sock.curve_server = True
        self._sock.zap_domain = _DOMAIN.encode()
        self._sock.router_mandatory = True
        self.address = f"tcp://{host}:{self._bind(host, port)}"
        self._pump = _Pump(self._sock, self._receive, self._handle)

    def _bind(self, host: str, port: int) -> int:
        if port:
            with contextlib.suppress(zmq.ZMQError):
                self._sock.bind(f"tcp://{host}:{port}")
                return port
        return int(self._sock.bind_to_random_port(f"tcp://{host}"))

    def _receive(self, flags: int) -> tuple[bytes, bytes]:
        """(peer, last frame) of a message."""
        peer, body = self._sock.recv(flags), self._sock.recv(flags)
        while self._sock.get(_HAS_MORE):
            body = self._sock.recv(flags)
        return peer, body

    def _handle(self, heard: tuple[bytes, bytes]) -> None:
        peer, body = heard
        try:
            message = self._decode(body)
        except msgspec.MsgspecError as error:
            self._on_garbage(peer, str(error))
            return
        self._on_message(peer, message)

    def send(self, peer: bytes, message: Message) -> bool:
        """False when the peer is gone (or its buffer is full, which is treated alike). What goes to many peers,
        one after the other, is encoded once."""
        if message is not self._last:
            self._last, self._body = message, self._encode(message)
        try:
            self._sock.send(peer, _NOW_AND_MORE)
            self._sock.send(self._body, _NOW)
        except zmq.ZMQError:
            return False
        self._pump.look()
        return True

    def close(self) -> None:
        self._pump.close()
        self._sock.close()
        self._guard.stop()


class Client:
    """A DEALER that keeps itself connected to wherever `locate()` says the server is.

    locate: address, or None while the server is not known (asked again after a while).
    on_up: called after each authenticated connection, before any message; on_lost: once per lost connection.
    """

    def __init__(
        self,
        ctx: zmq.Context[zmq.Socket[bytes]],
        key: FleetKey,
        locate: Callable[[], str | None],
        messages: Any,
        on_message: Callable[[Any], None],
        *,
        on_up: Callable[[], None] = lambda: None,
        on_lost: Callable[[], None] = lambda: None,
        first_wait: float = 0.0,
        longest_wait: float = 2.0,
    ) -> None:
        self._ctx, self._key, self._locate = ctx, key, locate
        self._decode = msgspec.msgpack.Decoder(messages).decode
        self._encode = msgspec.msgpack.Encoder().encode
        self._on_message, self._on_up, self._on_lost = on_message, on_up, on_lost
        self._longest, self._failures = longest_wait, 0
        self._loop = asyncio.get_running_loop()
        self._sock: zmq.Socket[bytes] | None = None
        self._pump: _Pump[bytes] | None = None
        self._watch: _Pump[list[bytes]] | None = None
        self._giving_up: asyncio.TimerHandle | None = None
        self.up = False
        self._closed = False
        self._timer = self._loop.call_later(first_wait * random.random(), self._open)

    def _open(self) -> None:
        address = self._locate()
        if address is None:
            self._retry()
            return
        sock = self._ctx.socket(zmq.DEALER)
        _secure(sock, self._key)
        sock.curve_serverkey = self._key.public.encode()
        sock.identity = b"c" + os.urandom(12)  # fresh for every connection
        sock.set(zmq.RECONNECT_IVL, -1)  # reconnecting is ours: a new identity each time
        sock.set(zmq.HANDSHAKE_IVL, 10_000)
        self._sock = sock
        monitor = sock.get_monitor_socket()
        self._watch = _Pump(monitor, monitor.recv_multipart, self._event)
        self._pump = _Pump(sock, sock.recv, self._handle)
        self._giving_up = self._loop.call_later(12.0, self._drop)
        sock.connect(address)

    def _event(self, frames: list[bytes]) -> None:
        kind = zmq.utils.monitor.parse_monitor_message(frames)["event"]
        if kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            if self._giving_up:
                self._giving_up.cancel()
            self.up, self._failures = True, 0
            self._on_up()
        elif kind in (
            zmq.EVENT_DISCONNECTED,
            zmq.EVENT_CLOSED,
            zmq.EVENT_HANDSHAKE_FAILED_AUTH,
            zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
            zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
        ):
            self._drop()

    def _handle(self, body: bytes) -> None:
        try:
            message = self._decode(body)
        except msgspec.MsgspecError:
            return
        self._on_message(message)

    def send(self, message: Message) -> bool:
        """False when not connected."""
        if not self.up or self._sock is None or self._pump is None:
            return False
        try:
            self._sock.send(self._encode(message), _NOW)
        except zmq.ZMQError:
            return False
        self._pump.look()
        return True

    def _release(self) -> None:
        if self._giving_up:
            self._giving_up.cancel()
        for pump in (self._pump, self._watch):
            if pump:
                pump.close()
        if self._sock is not None:
            with contextlib.suppress(zmq.ZMQError):
                self._sock.disable_monitor()  # its last word needs somebody who holds the other end, or it blocks
            self._sock.close()
            self._sock = None
        self._pump = self._watch = None

    def _drop(self) -> None:
        if self._sock is None:
            return
        if self._pump is not None and self.up:
            self._pump.drain()  # what arrived before the end is still good
        if self._sock is None:  # a callback closed us
            return
        was_up, self.up = self.up, False
        self._release()
        if not self._closed:
            self._retry()
            if was_up:
                self._on_lost()

    def _retry(self) -> None:
        self._failures += 1
        self._timer = self._loop.call_later(pause(self._failures, self._longest), self._open)

    def reconnect(self) -> None:
        """Drop the connection, as if lost, and ask `locate` again."""
        self._drop()

    def close(self) -> None:
        self._closed = True
        self.up = False
        self._timer.cancel()
        self._release()


def ask(key: FleetKey, address: str, message: Message, answers: Any, seconds: float = 10.0) -> Any:
    """Send one message and wait for one answer, without a loop. Raises LinkError when none comes in time."""
    ctx = context()
    sock = ctx.socket(zmq.DEALER)
    try:
        _secure(sock, key)
        sock.curve_serverkey = key.public.encode()
        sock.identity = b"q" + os.urandom(12)
        sock.connect(address)
        sock.send(msgspec.msgpack.encode(message))
        if not sock.poll(int(seconds * 1000)):
            raise LinkError(f"no answer from {address} within {seconds:g} s: is the head running? (exahpc logs)")
        return msgspec.msgpack.decode(sock.recv(), type=answers)
    finally:
        sock.close()
        ctx.term()
