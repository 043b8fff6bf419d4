"""A broker and agents that speak the real links; instead of a model they count: token i is the text "i "."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from exahpc.wire import link, local
from exahpc.wire import messages as m
from exahpc.wire.folder import Folder, HeadRecord, door

T = TypeVar("T")


def text_of(first: int, last: int) -> str:
    """What tokens [first, last) read as."""
    return "".join(f"{i} " for i in range(first, last))


class Servers:
    """How entries come to an agent: over the network, and through its door where it has one."""

    def __init__(self, key: link.FleetKey, door: Path | None, heard: Callable[[bytes, Any], None]) -> None:
        self._network = link.Server(link.context(), key, "127.0.0.1", m.EntryToAgent, heard)
        self._door = None if door is None else local.Server(door, m.EntryToAgent, heard)
        self.address = self._network.address

    def send(self, peer: bytes, message: m.AgentToEntry) -> bool:
        return (self._door is not None and self._door.send(peer, message)) or self._network.send(peer, message)

    def close(self) -> None:
        self._network.close()
        self.close_door()

    def close_door(self) -> None:
        if self._door is not None:
            self._door.close()
            self._door = None


class StubAgent:
    """One agent with one replica in slot `task`. Its knobs may be turned at any time."""

    def __init__(self, key: link.FleetKey, task: int, incarnation: int, door: Path | None = None) -> None:
        self.task, self.incarnation, self.replica = task, incarnation, 1
        self.capacity, self.weight, self.version = 64, 1.0, ""
        self.interval = 0.002
        self.full = self.mute = self.skip_index = False
        self.die_at: dict[int, int] = {}  # attempt -> close the link when it has reached that many tokens
        self.fail_at: dict[int, int] = {}  # attempt -> Failed(retry) there
        self.own_exit = False
        self.error: m.Failed | None = None
        self.submits: list[m.Submit] = []
        self.cancels: list[str] = []
        self.peer = b""
        self.running: dict[str, asyncio.Task[None]] = {}
        self.server = Servers(key, door, self._on)

    def route(self) -> m.AgentRoute:
        routes = [m.Route(self.task, self.replica, self.capacity, self.weight)]
        address = self.server.address
        return m.AgentRoute("a", self.task, self.incarnation, address, routes, version=self.version)

    def _on(self, peer: bytes, message: m.EntryToAgent) -> None:
        match message:
            case m.Submits(submits):
                for submit in submits:
                    self._on(peer, submit)
            case m.Submit():
                self.peer = peer
                self.submits.append(message)
                if self.full or message.incarnation != self.replica:
                    self.server.send(peer, m.Busy(message.request, message.attempt))
                    self.server.send(peer, m.Room([m.Load(self.task, 1000)]))
                elif self.error is not None:
                    values = self.error
                    self.server.send(
                        peer,
                        m.Failed(
                            message.request,
                            message.attempt,
                            values.status,
                            values.message,
                            values.type,
                            values.param,
                            values.code,
                        ),
                    )
                elif not self.mute:
                    self.running[message.request] = asyncio.create_task(self._run(peer, message))
            case m.Cancel():
                self.cancels.append(message.request)
                task = self.running.pop(message.request, None)
                if task:
                    task.cancel()

    async def _run(self, peer: bytes, submit: m.Submit) -> None:
        body = json.loads(submit.body)
        count = body.get("max_tokens", 8)
        wide = "x" * body.get("wide", 0)
        resume = {r.choice: r for r in submit.resume}
        choices = range(body.get("n", 1))
        done = {c: len(resume[c].ids) if c in resume else 0 for c in choices}
        start = min(done.values())
        role = submit.first and submit.kind == "chat"
        for i in range(start, count):
            await asyncio.sleep(self.interval)
            if i == self.die_at.get(submit.attempt):
                self.server.close()
                return
            if i == self.fail_at.get(submit.attempt):
                failed = m.Failed(
                    submit.request, submit.attempt, 500, "the replica died", retry=True, own_exit=self.own_exit
                )
                self.server.send(peer, failed)
                return
            frames = []
            for c in choices:
                if i < done[c]:
                    continue
                data = self._chunk(submit, c, f"{i} {wide}", role) if submit.stream else b""
                sent = len(text_of(0, i + 1))
                index = i + 1 if self.skip_index and i == 3 else i
                frames.append(m.Frame(submit.request, submit.attempt, c, index, [i], sent, data, i + 1 == count))
            role = False
            self.server.send(peer, m.Frames(frames))
        end = b"data: [DONE]\n\n" if submit.stream else self._whole(submit, count, len(choices))
        self.server.send(peer, m.Done(submit.request, submit.attempt, end, 5, count * len(choices)))
        self.running.pop(submit.request, None)

    @staticmethod
    def _chunk(submit: m.Submit, choice: int, text: str, role: bool) -> bytes:
        if submit.kind == "chat":
            delta = {"role": "assistant", "content": text} if role else {"content": text}
            made: dict[str, Any] = {"index": choice, "delta": delta, "finish_reason": None}
        else:
            made = {"index": choice, "text": text, "finish_reason": None}
        kind = "chat.completion.chunk" if submit.kind == "chat" else "text_completion"
        whole = {
            "id": submit.request,
            "object": kind,
            "created": submit.created,
            "model": "tiny",
            "choices": [made],
        }
        return b"data: " + json.dumps(whole).encode() + b"\n\n"

    @staticmethod
    def _whole(submit: m.Submit, count: int, n: int) -> bytes:
        text = text_of(0, count)
        one: Callable[[int], dict[str, Any]]
        if submit.kind == "chat":
            one = lambda c: {  # noqa: E731
                "index": c,
                "message": {"role": "assistant", "content": text},
                "finish_reason": "length",
            }
        else:
            one = lambda c: {"index": c, "text": text, "finish_reason": "length"}  # noqa: E731
        return json.dumps(
            {
                "id": submit.request,
                "object": "chat.completion" if submit.kind == "chat" else "text_completion",
                "created": submit.created,
                "model": "tiny",
                "choices": [one(c) for c in range(n)],
                "usage": {"prompt_tokens": 5, "completion_tokens": count * n, "total_tokens": 5 + count * n},
            }
        ).encode()

    def close(self) -> None:
        for task in self.running.values():
            task.cancel()
        self.server.close()


class Fleet:
    """A stub broker and its agents, in a loop of their own thread."""

    def __init__(self, folder: Folder) -> None:
        self.folder, self.key = folder, folder.fleet_key()
        self.agents: dict[int, StubAgent] = {}
        self.hellos: list[m.EntryHello] = []
        self.beats: list[m.EntryBeat] = []
        self.epoch, self.version, self._incarnation = 0, 0, 0
        self._peers: set[bytes] = set()
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.broker: link.Server | None = None
        self.start_broker()

    def call(self, work: Callable[[], T]) -> T:
        async def run() -> T:
            return work()

        return self._wait(run())

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def start_broker(self) -> None:
        """A new broker of a higher epoch; it knows no table until `publish`."""

        def start() -> None:
            self.epoch, self.version = self.epoch + 1, 0
            self._peers.clear()
            self.broker = link.Server(link.context(), self.key, "127.0.0.1", m.ToBroker, self._on)
            self.folder.publish_head(HeadRecord(self.epoch, self.broker.address, "localhost", 0))

        self.call(start)

    def stop_broker(self) -> None:
        def stop() -> None:
            assert self.broker is not None
            self.broker.close()
            self.broker = None

        self.call(stop)

    def _on(self, peer: bytes, message: m.ToBroker) -> None:
        assert self.broker is not None
        if isinstance(message, m.EntryHello):
            self.hellos.append(message)
            self._peers.add(peer)
            self.broker.send(peer, m.Welcome(self.epoch, 2.0))
            if self.version:
                self.broker.send(peer, self.table())
        elif isinstance(message, m.EntryBeat):
            self.beats.append(message)

    def table(self) -> m.FleetTable:
        return m.FleetTable(self.epoch, self.version, [a.route() for a in self.agents.values()])

    def agent(self, task: int, incarnation: int = 1) -> StubAgent:
        """Start an agent; `publish` makes it known. Those of odd tasks are met at their doors."""
        path = door(self.folder.path, "a", task, incarnation) if task % 2 else None
        self.agents[task] = self.call(lambda: StubAgent(self.key, task, incarnation, path))
        return self.agents[task]

    def renew(self) -> None:
        """Two fresh agents instead of all others, known to all entries."""
        for old in self.agents.values():
            self.call(old.close)
        self.agents.clear()
        self._incarnation += 1
        for task in (0, 1):
            self.agent(task, self._incarnation)
        self.publish()

    def publish(self) -> None:
        """Push the present table."""

        def push() -> None:
            self.version += 1
            if self.broker:
                for peer in self._peers:
                    self.broker.send(peer, self.table())

        self.call(push)

    def send(self, table: m.FleetTable) -> None:
        """Push any table."""

        def push() -> None:
            assert self.broker is not None
            for peer in self._peers:
                self.broker.send(peer, table)

        self.call(push)

    def close(self) -> None:
        def stop() -> None:
            for agent in self.agents.values():
                agent.close()
            if self.broker:
                self.broker.close()

        self.call(stop)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
