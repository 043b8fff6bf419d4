"""The head rank's local socket. Imports nothing heavy: it is bound before the model loads.

Only the peer that sent the last Adopt is heard; the socket lies in a private directory.
"""

from __future__ import annotations

import contextlib
import logging
import select
from collections import deque
from pathlib import Path
from typing import Any

import msgspec

from exahpc.wire.channel import Channel, listening
from exahpc.wire.messages import Admits, Adopt, AgentToReplica, Message

log = logging.getLogger(__name__)


class Mouth:
    """Listens at `path`. Bound early, so that an agent can connect while the model loads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._listener = listening(path)
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self._decode = msgspec.msgpack.Decoder(AgentToReplica).decode
        self._encode = msgspec.msgpack.Encoder().encode
        self._channels: list[Channel] = []  # in the order in which they came: the last Adopt counts
        self._agent: Channel | None = None
        self._heard: deque[Message] = deque()

    @property
    def descriptor(self) -> int:
        """Readable as long as there may be something to `receive`."""
        return self._epoll.fileno()

    def poll(self, seconds: float) -> bool:
        """Wait for something to `receive`, so long at most."""
        return bool(self._heard) or bool(self._epoll.poll(max(0.0, seconds), 1))

    def receive(self) -> Any | None:
        """The agent's next message, or None. Strangers and broken messages are passed over."""
        if not self._heard and (events := self._epoll.poll(0)):
            self._listen(any(fd == self._listener.fileno() for fd, _ in events))
        return self._heard.popleft() if self._heard else None

    def _listen(self, knocked: bool) -> None:
        """Look at everybody. knocked: newcomers wait."""
        with contextlib.suppress(OSError):  # nobody more
            while knocked:
                channel = Channel(self._listener.accept()[0])
                self._channels.append(channel)
                self._epoll.register(channel, select.EPOLLIN)
        for channel in list(self._channels):
            for body in channel.receive():
                self._take(channel, body)
            if channel.unread:
                channel.flush()
                self._await(channel)
            if channel.closed:
                self._forget(channel)

    def _take(self, channel: Channel, body: bytes) -> None:
        try:
            message = self._decode(body)
        except msgspec.MsgspecError as error:
            log.warning("message dropped: %s", error)
            return
        if isinstance(message, Adopt):
            self._agent = channel
            self._heard.clear()  # each answer would go to the new one, which would take a hello for one more link
        if channel is not self._agent:
            return
        if isinstance(message, Admits):
            self._heard += message.admits  # came together, and are received one by one
        else:
            self._heard.append(message)

    def _await(self, channel: Channel) -> None:
        """Also wait until it can be written to, where something is left to write."""
        self._epoll.modify(channel, select.EPOLLIN | (select.EPOLLOUT if channel.unread else 0))

    def _forget(self, channel: Channel) -> None:
        self._epoll.unregister(channel)
        self._channels.remove(channel)
        channel.close()
        if channel is self._agent:
            self._agent = None

    def send(self, message: Message) -> bool:
        """False when no agent can be reached; it is then forgotten."""
        agent = self._agent
        if agent is None or not agent.send(self._encode(message)):
            self._agent = None
            return False
        if agent.unread:
            self._await(agent)
        return True

    def close(self) -> None:
        for channel in list(self._channels):
            self._forget(channel)
        self._epoll.close()
        self._listener.close()
        with contextlib.suppress(OSError):
            self._path.unlink()
