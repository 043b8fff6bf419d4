"""Messages between processes of one node: both ends of local connections, in a loop.

No thread stands between process and kernel: a message there and its answer take a quarter of the time that they
take over ZeroMQ.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from exahpc.wire.channel import Channel, listening
from exahpc.wire.link import pause
from exahpc.wire.messages import Message

log = logging.getLogger(__name__)

LIFE_SECONDS = 8.0
"""So long an end may say nothing where it is asked for signs of life, as often as `_TRIES` says in that time."""
_TRIES = 4


class Line:
    """A channel in a loop: messages in and out. Empty ones are signs of life, each of which is answered.

    decode: of a message's bytes; hear: gets each message; over: called once when nothing comes any more, unless
    `close` was called before.
    """

    def __init__(
        self,
        sock: socket.socket,
        decode: Callable[[bytes], Any],
        hear: Callable[[Any], None],
        over: Callable[[], None],
        *,
        asks: Callable[[], None] | None = None,
    ) -> None:
        """asks: for signs of life, and this is called at the first one, before any message; an end that gives none
        for LIFE_SECONDS counts as gone."""
        self._channel, self._fd = Channel(sock), sock.fileno()
        self._decode, self._hear, self._over = decode, hear, over
        self._asks, self._lives, self._unanswered = asks is not None, asks, 0
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._readable)
        self._pulse: asyncio.Handle | None = self._loop.call_soon(self._ask) if self._asks else None

    def _readable(self) -> None:
        channel = self._channel
        self._unanswered = 0
        bodies = channel.receive()
        if not channel.closed:
            bodies += channel.rest()
        if bodies and self._lives is not None:
            lives, self._lives = self._lives, None
            lives()
            if self._fd < 0:
                return
        for body in bodies:
            if not body:
                if not self._asks:
                    self.send(b"")
                continue
            try:
                message = self._decode(body)
            except msgspec.MsgspecError:
                continue
            try:
                self._hear(message)
            except Exception:  # a defect must cost the others behind it nothing
                log.exception("a message could not be handled")
            if self._fd < 0:  # closed by whoever heard it
                return
        if channel.closed:
            self.close()
            self._over()

    def _ask(self) -> None:
        """Counted, not timed: a process that slept itself has asked once at most."""
        if self._unanswered >= _TRIES:
            self.close()
            self._over()
            return
        self._unanswered += 1
        self.send(b"")
        self._pulse = self._loop.call_later(LIFE_SECONDS / _TRIES, self._ask)

    def send(self, body: bytes) -> bool:
        """False: the other end is gone, which `over` tells soon if it has not yet."""
        if not self._channel.send(body):
            return False
        if self._channel.unread:
            self._loop.add_writer(self._fd, self._writable)
        return True

    def _writable(self) -> None:
        self._channel.flush()
        if not self._channel.unread:
            self._loop.remove_writer(self._fd)

    def close(self) -> None:
        if self._pulse is not None:
            self._pulse.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
            self._fd = -1
        self._channel.close()


class Client:
    """The connecting end, in a loop; it keeps itself connected to whoever listens at `path`.

    on_up: called after each connection, before any message; on_lost: once per connection of which on_up told;
    longest_wait: seconds between two attempts; asks: see `Line`, and nobody is connected before the first sign of
    life: the kernel also connects to a stopped process; on_refused: called instead of another attempt where nobody
    listens. Callbacks must not block.
    """

    def __init__(
        self,
        path: Path,
        messages: Any,
        on_message: Callable[[Any], None],
        *,
        on_up: Callable[[], None] = lambda: None,
        on_lost: Callable[[], None] = lambda: None,
        longest_wait: float = 2.0,
        asks: bool = False,
        on_refused: Callable[[], None] | None = None,
    ) -> None:
        """messages: the union of message types that may arrive."""
        self._path, self._asks = str(path), asks
        self._decode = msgspec.msgpack.Decoder(messages).decode
        self._encode = msgspec.msgpack.Encoder().encode
        self._on_message, self._on_up, self._on_lost = on_message, on_up, on_lost
        self._on_refused = on_refused
        self._longest, self._failures = longest_wait, 0
        self.up = False
        self._loop = asyncio.get_running_loop()
        self._line: Line | None = None
        self._timer: asyncio.Handle = self._loop.call_soon(self._open)

    def _open(self) -> None:
        sock: socket.socket | None = None
        try:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.setblocking(False)
            sock.connect(self._path)
        except OSError as error:  # not there yet, or not any more; too many wait there; no descriptor is free
            if sock is not None:
                sock.close()
            if self._on_refused is not None and isinstance(error, FileNotFoundError | ConnectionRefusedError):
                self._on_refused()
            else:
                self._retry()
            return
        asks = self._connected if self._asks else None
        self._line = Line(sock, self._decode, self._on_message, self._lost, asks=asks)
        if asks is None:
            self._connected()

    def _connected(self) -> None:
        self.up, self._failures = True, 0
        self._on_up()

    def send(self, message: Message) -> bool:
        """False when not connected."""
        return self.up and self._line is not None and self._line.send(self._encode(message))

    def _lost(self) -> None:
        was_up, self.up, self._line = self.up, False, None
        self._retry()
        if was_up:
            self._on_lost()

    def _retry(self) -> None:
        self._failures += 1
        self._timer = self._loop.call_later(pause(self._failures, self._longest), self._open)

    def reconnect(self) -> None:
        """Drop the connection, as if lost."""
        if self._line is not None:
            self._line.close()
            self._lost()

    def close(self) -> None:
        self._timer.cancel()
        self.up = False
        line, self._line = self._line, None
        if line is not None:
            line.close()


class Server:
    """The listening end, in a loop. It learns that a peer is gone when a send to it returns False, as
    `link.Server` does. Raises OSError when it cannot listen at `path`."""

    def __init__(self, path: Path, messages: Any, on_message: Callable[[bytes, Any], None]) -> None:
        """messages: the union of message types that may arrive; on_message: gets the peer's name, too."""
        self._path = path
        self._decode = msgspec.msgpack.Decoder(messages).decode
        self._encode = msgspec.msgpack.Encoder().encode
        self._on_message = on_message
        self._lines: dict[bytes, Line] = {}
        self._count = 0
        self._listener = listening(path)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._listener.fileno(), self._knock)

    def _knock(self) -> None:
        try:
            sock = self._listener.accept()[0]
        except OSError:  # it has left again
            return
        self._count += 1
        peer = b"local %d" % self._count
        self._lines[peer] = Line(sock, self._decode, partial(self._on_message, peer), partial(self._left, peer))

    def _left(self, peer: bytes) -> None:
        del self._lines[peer]

    def send(self, peer: bytes, message: Message) -> bool:
        """False when the peer is gone."""
        line = self._lines.get(peer)
        return line is not None and line.send(self._encode(message))

    def close(self) -> None:
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        self._path.unlink(missing_ok=True)
        for line in self._lines.values():
            line.close()
        self._lines.clear()
