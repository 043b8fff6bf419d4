"""One end of a local connection: messages in and out, and no waiting. `local` runs it in a loop, replicas poll it.

A message is its length (4 bytes, little-endian) and so many bytes. One that the other end does not read yet is
kept here. Whoever can open the socket is a member of the deployment: it lies in a private directory
(`folder.runtime_directory`), so nothing is encrypted.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from pathlib import Path

from exahpc.wire.link import MAX_MESSAGE_BYTES

_SIZE = struct.Struct("<I")
_CHUNK = 2**16  # bytes read at once; then others get their turn
_MOST_UNREAD = 2**28
"""Bytes kept for an end that does not read: with more to send after that it counts as gone."""


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
        if len(self._out) > _MOST_UNREAD:  # what waits, not what comes: two large bodies are no sign of death
            self._give_up()
            return False
        self._out += _SIZE.pack(len(body))
        self._out += body
        self.flush()
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

    def rest(self) -> list[bytes]:
        """All that is left, where the other end died and had not read everything; then nothing comes any more.

        The kernel calls that an error of the socket, after which uvloop watches it no longer."""
        found: list[bytes] = []
        if self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            while not self.closed:
                found += self.receive()
        return found

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
