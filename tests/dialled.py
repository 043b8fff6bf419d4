"""The agent's end of a replica's socket, for tests that have no loop."""

from __future__ import annotations

import select
import socket
import time
from pathlib import Path

import msgspec

from exahpc.wire.channel import Channel
from exahpc.wire.messages import Message


class Dialled:
    """A connection to whoever listens at `path`, waited for if need be."""

    def __init__(self, path: Path, seconds: float = 60.0) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        end = time.monotonic() + seconds
        while sock.connect_ex(str(path)):
            assert time.monotonic() < end, f"nobody listens at {path}"
            time.sleep(0.01)
        self.channel = Channel(sock)
        self._heard: list[bytes] = []

    def send(self, *messages: Message) -> None:
        for message in messages:
            self.channel.send(msgspec.msgpack.encode(message))

    def poll(self, seconds: float) -> bool:
        """Whether there is something to `receive` within so many seconds."""
        end = time.monotonic() + seconds
        while not self._heard:
            if not select.select([self.channel], [], [], max(0.0, end - time.monotonic()))[0]:
                return False
            self._heard += self.channel.receive()
            if self.channel.closed and not self._heard:
                return False
        return True

    def receive(self) -> bytes:
        """The next message, which is there."""
        return self._heard.pop(0)
