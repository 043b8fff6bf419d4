"""The head rank's local socket. Imports nothing heavy: it is bound before the model loads.

Only the peer that sent the last Adopt is heard; the socket lies in a private directory.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from pathlib import Path
from typing import Any

import msgspec
import zmq

from exahpc.wire.messages import Admit, Admits, Adopt, AgentToReplica, Message

log = logging.getLogger(__name__)


class Mouth:
    """The ROUTER at `path`. Bound early, so that an agent can connect while the model loads."""

    def __init__(self, path: Path, ctx: zmq.Context[zmq.Socket[bytes]] | None = None) -> None:
        """ctx: shared with other sockets of this process, and closed by its owner."""
        self._path = path
        self._own = ctx is None
        self._ctx = ctx or zmq.Context()
        self._sock = self._ctx.socket(zmq.ROUTER)
        self._sock.linger = 500
        self._sock.router_mandatory = True
        self._sock.set(zmq.SNDHWM, 100_000)
        self._sock.set(zmq.RCVHWM, 100_000)
        before = os.umask(0o077)
        try:
            self._sock.bind(f"ipc://{path}")
        finally:
            os.umask(before)
        self._decode = msgspec.msgpack.Decoder(AgentToReplica).decode
        self._encode = msgspec.msgpack.Encoder().encode
        self.agent: bytes | None = None
        self._admits: deque[Admit] = deque()  # came together, and are received one by one

    @property
    def descriptor(self) -> int:
        """Readable when there may be something to `receive`, once for any number of messages (see zmq.FD)."""
        return int(self._sock.get(zmq.FD))

    def poll(self, seconds: float) -> bool:
        return bool(self._sock.poll(int(seconds * 1000) if seconds > 0 else 0))

    def receive(self) -> Any | None:
        """The agent's next message, or None. Strangers and broken messages are passed over."""
        while True:
            if self._admits:
                return self._admits.popleft()
            try:
                frames = self._sock.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return None
            try:
                message = self._decode(frames[-1])
            except msgspec.MsgspecError as error:
                log.warning("message dropped: %s", error)
                continue
            if isinstance(message, Adopt):
                self.agent = frames[0]
            if frames[0] != self.agent:
                continue
            if not isinstance(message, Admits):
                return message
            self._admits += message.admits

    def send(self, message: Message) -> bool:
        """False when no agent can be reached; it is then forgotten."""
        if self.agent is None:
            return False
        try:
            self._sock.send_multipart([self.agent, self._encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError:
            self.agent = None
            return False
        return True

    def close(self) -> None:
        self._sock.close()
        if self._own:
            self._ctx.term()
        with contextlib.suppress(OSError):
            self._path.unlink()
