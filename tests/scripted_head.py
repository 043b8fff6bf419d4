"""The other side of an agent's links, for tests: a broker and an entry that do as they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from exahpc.wire import link
from exahpc.wire import messages as m
from exahpc.wire.folder import Folder, HeadRecord


class Head:
    """A scripted broker and entry: knows what agents say, sends requests to one of them."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.key, self.ctx = self.folder.fleet_key(), link.context()
        self.server = link.Server(self.ctx, self.key, "127.0.0.1", m.ToBroker, self._heard)
        self.folder.publish_head(HeadRecord(1, self.server.address, "localhost", 0))
        self.peers: dict[int, bytes] = {}
        self.hellos: dict[int, m.AgentHello] = {}
        self.states: dict[int, m.ReplicaState] = {}
        self.beats = 0
        self.gone: list[m.AgentGone] = []
        self.answers: list[Any] = []
        self.entry: link.Client | None = None

    def _heard(self, peer: bytes, message: Any) -> None:
        match message:
            case m.AgentHello():
                self.peers[message.task], self.hellos[message.task] = peer, message
                self.states |= {state.slot: state for state in message.replicas}
                self.server.send(peer, m.Welcome(1, 0.2))
            case m.AgentBeat():
                self.beats += 1
                self.states |= {state.slot: state for state in message.replicas}
            case m.AgentGone():
                self.gone.append(message)

    async def until(self, what: str, check: Callable[[], Any], seconds: float = 60.0) -> Any:
        end = asyncio.get_running_loop().time() + seconds
        while not (value := check()):
            assert asyncio.get_running_loop().time() < end, f"waited in vain for {what}"
            await asyncio.sleep(0.01)
        return value

    async def ready(self, replicas: int) -> None:
        phases = ["ready"] * replicas
        await self.until("all ready", lambda: [s.phase for s in self.states.values()] == phases)

    async def connect(self, task: int) -> None:
        def hear(message: Any) -> None:
            self.answers += message.answers if isinstance(message, m.Answers) else [message]

        address = self.hellos[task].address
        self.entry = link.Client(self.ctx, self.key, lambda: address, m.AgentToEntry, hear)
        await self.until("the entry's link", lambda: self.entry is not None and self.entry.up)

    def submit(self, request: str, slot: int, tokens: int, **more: Any) -> None:
        body = msgspec.json.encode({"model": "emulated", "prompt": "once", "max_tokens": tokens, "stream": True})
        stream = more.pop("stream", True)
        incarnation = self.states[slot].incarnation
        assert self.entry is not None
        self.entry.send(m.Submit(request, 1, slot, incarnation, "completion", body, stream, 1, 0, **more))

    async def ending(self, request: str) -> Any:
        """Done, Failed or Busy."""

        def find() -> Any:
            kinds = m.Done | m.Failed | m.Busy
            return next((a for a in self.answers if isinstance(a, kinds) and a.request == request), None)

        return await self.until(f"the end of {request}", find)

    def frames(self, request: str) -> list[m.Frame]:
        return [f for a in self.answers if isinstance(a, m.Frames) for f in a.frames if f.request == request]

    def close(self) -> None:
        if self.entry is not None:
            self.entry.close()
        self.server.close()
