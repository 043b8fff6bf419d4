"""A real agent with a real 1x1 replica over mpirun, talked to as an entry does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from exahpc.agent.steps import StepRecord
from exahpc.deployment.parse import load
from exahpc.wire import link
from exahpc.wire import messages as m
from exahpc.wire.folder import Folder, HeadRecord, runtime_directory
from tests.live import processes_of, until
from tests.tiny import make_model

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]

TOML = """
name = "live"
[model]
path = "{model}"
dtype = "float32"
context = 512
[[pool]]
name = "a"
max_sequences = 4
[recovery]
backoff_seconds = 0.1
beat_seconds = 0.5
[launcher]
kind = "local"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder.create(tmp_path / "live", TOML.format(model=make_model(tmp_path / "tiny", layers=2)))
    load(made.toml)
    yield made
    for line in processes_of(made.path):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(line.split()[0]), signal.SIGKILL)


def start_agent(folder: Folder) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "exahpc.agent", "--folder", str(folder.path), "--pool", "a", "--task", "0"]
    with folder.logs("a-0", "agent.log").open("ab") as log:
        return subprocess.Popen(argv, stdout=log, stderr=log, env=os.environ | {"DS_ACCELERATOR": "cpu"})


class Head:
    """A scripted broker and entry in one: knows what the agent says, sends requests to where it says it is."""

    def __init__(self, folder: Folder) -> None:
        self.folder, self.key = folder, folder.fleet_key()
        self.ctx = link.context()
        self.server = link.Server(self.ctx, self.key, "127.0.0.1", m.ToBroker, self.heard)
        self.hello: m.AgentHello | None = None
        self.states: dict[int, m.ReplicaState] = {}
        self.phases: list[tuple[int, str]] = []
        self.gone: m.AgentGone | None = None
        self.peer = b""
        self.entry: link.Client | None = None
        self.answers: list[Any] = []
        folder.publish_head(HeadRecord(1, self.server.address, "localhost", os.getpid()))

    def heard(self, peer: bytes, message: Any) -> None:
        match message:
            case m.AgentHello():
                self.hello, self.peer = message, peer
                self.server.send(peer, m.Welcome(1, 0.5))
                self.note(message.replicas)
                if self.entry is not None:
                    self.entry.close()
                self.entry = link.Client(
                    self.ctx, self.key, lambda: message.address, m.AgentToEntry, self.answered
                )
            case m.AgentBeat():
                self.note(message.replicas)
            case m.AgentGone():
                self.gone = message

    def answered(self, message: Any) -> None:
        self.answers += message.answers if isinstance(message, m.Answers) else [message]

    def note(self, replicas: list[m.ReplicaState]) -> None:
        for state in replicas:
            self.states[state.slot] = state
            if (state.incarnation, state.phase) not in self.phases:
                self.phases.append((state.incarnation, state.phase))

    async def until(self, what: str, check: Callable[[], Any], seconds: float = 100.0) -> Any:
        end = time.monotonic() + seconds
        while not (value := check()):
            assert time.monotonic() < end, f"waited in vain for {what}\n{self.tail()}"
            await asyncio.sleep(0.01)
        return value

    def tail(self) -> str:
        logs = sorted((self.folder.path / "logs").rglob("*.log"))
        return "\n".join(f"--- {path.name}\n{path.read_text()[-3000:]}" for path in logs)

    async def ready(self, incarnation: int) -> None:
        await self.until(
            f"incarnation {incarnation} ready",
            lambda: (s := self.states.get(0)) and (s.incarnation, s.phase) == (incarnation, "ready"),
        )
        await self.until("the entry's link", lambda: self.entry is not None and self.entry.up)

    def submit(self, request: str, incarnation: int, tokens: int, attempt: int = 1) -> None:
        body = msgspec.json.encode(
            {"model": "tiny", "prompt": "once", "max_tokens": tokens, "temperature": 0, "stream": True}
        )
        assert self.entry is not None
        self.entry.send(m.Submit(request, attempt, 0, incarnation, "completion", body, True, 1, 0))

    def frames(self, request: str) -> list[m.Frame]:
        sets = [a.frames for a in self.answers if isinstance(a, m.Frames)]
        return [frame for frames in sets for frame in frames if frame.request == request]

    def ending(self, request: str) -> Any:
        endings = [a for a in self.answers if isinstance(a, m.Done | m.Failed | m.Busy) and a.request == request]
        assert len(endings) <= 1, "one attempt, one ending"
        return endings[0] if endings else None

    def ids(self, request: str) -> list[int]:
        ids: list[int] = []
        for frame in self.frames(request):
            assert frame.index == len(ids), "frames follow each other without gap or overlap"
            ids += frame.ids
        return ids

    def text(self, request: str) -> str:
        """What the client of a finished stream was given."""
        data = b"".join(frame.data for frame in self.frames(request)) + self.ending(request).data
        events = [line.removeprefix(b"data: ") for line in data.split(b"\n\n") if line]
        assert events.pop() == b"[DONE]"
        return "".join(msgspec.json.decode(event)["choices"][0]["text"] for event in events)

    def record(self) -> StepRecord:
        path = runtime_directory(self.folder.path, os.uname().nodename) / "a.0.json"
        return msgspec.json.decode(path.read_bytes(), type=StepRecord)

    def ranks(self) -> list[int]:
        lines = [line for line in processes_of(self.folder.path) if "exahpc.replica" in line]
        return [int(line.split()[0]) for line in lines if "mpirun" not in line]

    def close(self) -> None:
        if self.entry is not None:
            self.entry.close()
        self.server.close()


async def story(head: Head) -> None:
    folder = head.folder
    agent = start_agent(folder)

    # a streamed answer, frame by frame
    await head.ready(1)
    assert [phase for _, phase in head.phases] == sorted(
        {phase for _, phase in head.phases}, key=["down", "launching", "loading", "canary", "ready"].index
    )
    head.submit("r1", 1, 40)
    done = await head.until("the answer", lambda: head.ending("r1"))
    assert isinstance(done, m.Done)
    assert (done.prompt_tokens, done.completion_tokens) == (4, 40)
    first = head.text("r1")
    assert len(first) == 40, "a character a token"
    assert head.ids("r1")

    # a request for another incarnation is told Busy, and the load is pushed
    head.submit("r2", 9, 5)
    assert isinstance(await head.until("busy", lambda: head.ending("r2")), m.Busy)
    await head.until("room", lambda: any(isinstance(a, m.Room) for a in head.answers))

    # kill -9 of a rank under load: retry elsewhere, not suspect, and the step comes back
    head.submit("r3", 1, 400)
    await head.until("some tokens", lambda: len(head.ids("r3")) > 10)
    os.kill(head.ranks()[0], signal.SIGKILL)
    failed = await head.until("the loss", lambda: head.ending("r3"))
    assert isinstance(failed, m.Failed)
    assert (failed.retry, failed.own_exit) == (True, False)
    await head.ready(2)
    assert "signal 9" in head.states[0].story
    assert head.states[0].restarts == 1

    # the same request gives the same tokens on the new incarnation
    head.submit("r4", 2, 40)
    assert isinstance(await head.until("the answer", lambda: head.ending("r4")), m.Done)
    assert head.text("r4") == first

    # kill -9 of the agent under load: the step lives on and is adopted, without a new incarnation
    head.submit("r5", 2, 400)
    await head.until("some tokens", lambda: len(head.ids("r5")) > 10)
    before, old = head.record(), head.hello
    agent.kill()
    agent.wait()
    head.states.clear()
    agent = start_agent(folder)
    await head.until("the next hello", lambda: head.hello is not old)
    await head.ready(2)
    assert head.record().pid == before.pid
    head.submit("r6", 2, 40)
    assert isinstance(await head.until("the answer", lambda: head.ending("r6")), m.Done)
    assert head.text("r6") == first

    # drain: what runs is finished, what is new is refused, nothing is left behind
    head.submit("r7", 2, 60)
    await head.until("some tokens", lambda: len(head.ids("r7")) > 3)
    head.server.send(head.peer, m.DrainAgent(1, 20.0, "the test is over"))
    await head.until("draining", lambda: head.states[0].phase == "draining")
    head.submit("r8", 2, 5)
    assert isinstance(await head.until("the answer", lambda: head.ending("r7")), m.Done)
    assert isinstance(await head.until("busy", lambda: head.ending("r8")), m.Busy)
    assert await asyncio.to_thread(agent.wait, 20) == 0
    assert head.gone == m.AgentGone("the test is over", False)


def test_streams_survive_and_steps_are_adopted_and_nothing_is_left(folder: Folder) -> None:
    shm = set(os.listdir("/dev/shm"))
    runtime = runtime_directory(folder.path, os.uname().nodename)

    async def run() -> None:
        head = Head(folder)
        try:
            await story(head)
        finally:
            head.close()

    asyncio.run(run())
    until("every process is gone", lambda: not processes_of(folder.path), 10)
    assert not runtime.exists()
    left = {name for name in set(os.listdir("/dev/shm")) - shm if "vader" in name or "psm" in name}
    mine = {name for name in left if os.stat(f"/dev/shm/{name}").st_uid == os.getuid()}
    assert len(mine) == len(left)
    for log in (folder.path / "logs").rglob("*.log"):
        assert log.stat().st_mode & 0o077 == 0 or log.name == "agent.log"
        assert folder.fleet_key().secret not in log.read_text()
