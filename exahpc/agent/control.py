"""The agent's side of the link to the broker: hello, beats, orders, what leases report."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import zmq

from exahpc.telemetry.meters import Send
from exahpc.wire import link
from exahpc.wire.folder import Folder
from exahpc.wire.messages import (
    AgentBeat,
    AgentHello,
    BrokerToAgent,
    LeaseProgress,
    Message,
    ReplicaState,
    Welcome,
)

_KEPT_REPORTS = 100_000


class Control:
    """hello: builds the message that opens each connection; states: of all replicas; epoch: highest obeyed;
    push: sends what was measured, called with each beat."""

    def __init__(
        self,
        ctx: zmq.Context[zmq.Socket[bytes]],
        folder: Folder,
        hello: Callable[[], AgentHello],
        states: Callable[[], list[ReplicaState]],
        epoch: Callable[[], int],
        on_message: Callable[[Any], None],
        beat_seconds: float,
        push: Callable[[Send], None] = lambda _: None,
    ) -> None:
        self._folder, self._hello, self._states, self._epoch = folder, hello, states, epoch
        self._on_message, self._push = on_message, push
        self._loop = asyncio.get_running_loop()
        self._every = beat_seconds
        self._number = 0
        self._told: dict[int, ReplicaState] = {}
        self._reports: deque[LeaseProgress] = deque(maxlen=_KEPT_REPORTS)
        self._soon: asyncio.Handle | None = None
        self._closed = False
        self._ctx = ctx
        self._client: link.Client | None = None
        self._timer: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Connect, and beat from now on."""
        self._client = link.Client(
            self._ctx,
            self._folder.fleet_key(),
            self._locate,
            BrokerToAgent,
            self._heard,
            on_up=self._greet,
            first_wait=0.2,
            longest_wait=1.0,
        )
        self._timer = self._loop.call_later(self._every, self._beat_and_again)

    def _locate(self) -> str | None:
        """The head record may still name a broker that a younger one has replaced: wait for the new record."""
        head = self._folder.head()
        return head.address if head is not None and head.epoch >= self._epoch() else None

    def _greet(self) -> None:
        hello = self._hello()
        self._told = {state.slot: state for state in hello.replicas}
        self.send(hello)
        self._flush()

    def _heard(self, message: Any) -> None:
        if isinstance(message, Welcome):
            self._every = message.beat_seconds
        self._on_message(message)

    @property
    def up(self) -> bool:
        return self._client is not None and self._client.up

    def send(self, message: Message) -> bool:
        """False when no broker is connected."""
        return self._client is not None and self._client.send(message)

    def report(self, progress: list[LeaseProgress]) -> None:
        """Kept until a broker is there: rows must not be run twice because a broker was away."""
        self._reports.extend(progress)
        self._flush()

    def _flush(self) -> None:
        while self._reports and self.send(self._reports[0]):
            self._reports.popleft()

    def beat_soon(self) -> None:
        """A phase changed: one beat after the events of this turn of the loop."""
        if self._soon is None and not self._closed:
            self._soon = self._loop.call_soon(self._beat)

    def _beat_and_again(self) -> None:
        self._beat()
        self._timer = self._loop.call_later(self._every, self._beat_and_again)

    def _beat(self) -> None:
        self._soon = None
        changed = [state for state in self._states() if self._told.get(state.slot) != state]
        if self.send(AgentBeat(self._number + 1, changed)):
            self._number += 1
            self._told.update((state.slot, state) for state in changed)
            self._push(self.send)
        self._flush()

    def reconnect(self) -> None:
        if self._client is not None:
            self._client.reconnect()

    def close(self) -> None:
        self._closed = True
        for handle in (self._timer, self._soon):
            if handle is not None:
                handle.cancel()
        if self._client is not None:
            self._client.close()
