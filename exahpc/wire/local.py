"""Messages between processes of one node, over Unix sockets in a private directory (`folder.runtime_directory`).

Whoever can open the socket is a member of the deployment, so nothing is encrypted, and no thread stands between
process and kernel: a message there and its answer take a quarter of the time that they take over ZeroMQ. A message
is its length (4 bytes, little-endian) and so many bytes. One that the other end does not read yet is kept here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from exahpc.wire.link import MAX_MESSAGE_BYTES
from exahpc.wire.messages import Message

_SIZE = struct.Struct("<I")
_CHUNK = 2**18  # bytes read at once; then other callbacks of the loop get their turn
_MOST_UNREAD = 2**26
"""Bytes kept for an end that does not read: after that it counts as gone."""


def listening(path: Path) -> socket.socket:
    """A socket that others of this user may connect to, in place of one that a dead process left there."""
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        sock.bind(str(path))
    finally:
        os.umask(before)
    sock.listen(64)
    sock.setblocking(False)
    return sock


class Channel:
    """One end of a connection; it never blocks. closed: nothing comes any more; unread: `flush` is to be called
    once the socket can be written to."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._in, self._out = bytearray(), bytearray()  # the beginning of a message; what has not left yet
        self._mute = self.closed = False

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def unread(self) -> bool:
        return bool(self._out)

    def send(self, body: bytes) -> bool:
        """Send a message, or keep it. False: the other end is gone, or has not read for too long."""
        if self._mute:
            return False
        self._out += _SIZE.pack(len(body))
        self._out += body
        self.flush()
        if len(self._out) > _MOST_UNREAD:
            self._give_up()
        return not self._mute

    def flush(self) -> None:
        """Send what the socket takes of what is kept."""
        try:
            while self._out:
                sent = self._sock.send(self._out, socket.MSG_NOSIGNAL)
                del self._out[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self._give_up()

    def _give_up(self) -> None:
        """Nothing leaves any more. What has come can still be read; behind it stands the end."""
        self._mute = True
        self._out.clear()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def receive(self) -> list[bytes]:
        """The messages that have come, in order; `closed` may be true afterwards."""
        try:
            data = self._sock.recv(_CHUNK)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.closed = True
            return []
        self._in += data
        return self._split()

    def _split(self) -> list[bytes]:
        """Take whole messages out of what came."""
        found: list[bytes] = []
        at, end = 0, len(self._in)
        with memoryview(self._in) as view:
            while at + _SIZE.size <= end:
                size: int = _SIZE.unpack_from(view, at)[0]
                begin = at + _SIZE.size
                if size > MAX_MESSAGE_BYTES:  # this is no end of ours
                    self.closed = True
                    break
                if begin + size > end:
                    break
                found.append(bytes(view[begin : begin + size]))
                at = begin + size
        del self._in[:at]
        return found

    def close(self) -> None:
        self._mute = self.closed = True
        self._sock.close()


class Client:
    """The connecting end, in a loop; it keeps itself connected to whoever listens at `path`.

    on_up: called after each connection, before any message; on_lost: once per lost connection; longest_wait:
    seconds between two attempts. Callbacks must not block.
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
    ) -> None:
        """messages: the union of message types that may arrive."""
        self._path = str(path)
        self._decode = msgspec.msgpack.Decoder(messages).decode
        self._encode = msgspec.msgpack.Encoder().encode
        self._on_message, self._on_up, self._on_lost = on_message, on_up, on_lost
        self._longest, self._failures = longest_wait, 0
        self._loop = asyncio.get_running_loop()
        self._channel: Channel | None = None
        self._fd = -1
        self._ended = False
        self._timer: asyncio.Handle = self._loop.call_soon(self._open)

    def _open(self) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            sock.connect(self._path)
        except OSError:  # not there yet, or not any more
            sock.close()
            self._retry()
            return
        self._channel, self._fd, self._failures = Channel(sock), sock.fileno(), 0
        self._loop.add_reader(self._fd, self._readable)
        self._on_up()

    def _readable(self) -> None:
        channel = self._channel
        assert channel is not None
        for body in channel.receive():
            try:
                message = self._decode(body)
            except msgspec.MsgspecError:
                continue
            self._on_message(message)
            if self._ended:  # by what was called
                return
        if channel.closed:
            self._lost()

    def send(self, message: Message) -> bool:
        """False when not connected."""
        channel = self._channel
        if channel is None or not channel.send(self._encode(message)):
            return False  # why it is closed shows in `_readable`
        if channel.unread:
            self._loop.add_writer(self._fd, self._writable)
        return True

    def _writable(self) -> None:
        channel = self._channel
        assert channel is not None
        channel.flush()
        if not channel.unread:
            self._loop.remove_writer(self._fd)

    def _release(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
            channel.close()

    def _lost(self) -> None:
        self._release()
        self._retry()
        self._on_lost()

    def _retry(self) -> None:
        self._failures += 1
        longest = min(self._longest, 0.05 * 2 ** min(self._failures, 10))
        self._timer = self._loop.call_later(longest * (0.5 + random.random() / 2), self._open)

    def close(self) -> None:
        self._ended = True
        self._timer.cancel()
        self._release()
