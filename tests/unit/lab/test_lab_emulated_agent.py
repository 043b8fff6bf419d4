"""The real agent serves emulated replicas as it serves real ones."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from exahpc.wire import messages as m
from exahpc.wire.folder import Folder
from tests.scripted_head import Head
from tests.tiny import make_tokenizer

TOML = """
name = "d"
[model]
path = "{model}"
name = "emulated-tiny"
context = 512
[[pool]]
name = "a"
replicas = 3
replicas_per_task = 3
[recovery]
backoff_seconds = 0.1
beat_seconds = 0.2
[launcher]
kind = "local"
"""
LATENCY = '{"base_seconds": 0.01, "each_seconds": 0.0, "prompt_seconds": 0.001}'


def run(home: Path, story: Callable[[Head, subprocess.Popen[bytes]], Awaitable[None]]) -> None:
    async def whole() -> None:
        (home / "m").mkdir()
        make_tokenizer(home / "m")
        head = Head(Folder.create(home / "d", TOML.replace("{model}", str(home / "m"))))
        argv = ["-m", "exahpc.lab.emulated.agent", "--folder", str(head.folder.path), "--pool", "a", "--task", "0"]
        agent = subprocess.Popen([sys.executable, *argv, "--latency", LATENCY])
        try:
            await head.until("the agent", lambda: len(head.states) == 3)
            await head.ready(3)
            await head.connect(0)
            await story(head, agent)
        finally:
            agent.kill()
            agent.wait()
            head.close()

    asyncio.run(whole())


def submit(head: Head, request: str, slot: int, tokens: int) -> None:
    body = {"model": "emulated-tiny", "prompt": "once", "max_tokens": tokens, "stream": True}
    incarnation, encoded = head.states[slot].incarnation, msgspec.json.encode(body)
    assert head.entry is not None
    head.entry.send(m.Submit(request, 1, slot, incarnation, "completion", encoded, True, 1, 0))


def test_requests_restarts_and_drains_are_those_of_a_real_agent_and_the_label_shows(tmp_path: Path) -> None:
    async def story(head: Head, agent: subprocess.Popen[bytes]) -> None:
        assert head.hellos[0].node == "emulated-0"
        submit(head, "r", 1, 30)
        done: Any = await head.ending("r")
        assert (done.prompt_tokens, done.completion_tokens) == (4, 30)
        assert b'"model":"emulated-tiny"' in head.frames("r")[0].data
        before = head.states[1].incarnation
        submit(head, "lost", 1, 400)
        await head.until("its first token", lambda: head.frames("lost"))
        head.server.send(head.peers[0], m.RestartReplica(1, 1, before, "test"))
        assert (await head.ending("lost")).retry
        await head.until("its next life", lambda: head.states[1].incarnation > before)
        await head.ready(3)
        head.server.send(head.peers[0], m.DrainAgent(1, 30.0, "test"))
        await head.until("good-bye", lambda: head.gone)
        await head.until("its end", lambda: agent.poll() is not None)
        assert agent.returncode == 0

    run(tmp_path, story)


def test_when_the_process_of_the_replicas_dies_all_are_lost_and_come_back(tmp_path: Path) -> None:
    async def story(head: Head, agent: subprocess.Popen[bytes]) -> None:
        before = {slot: state.incarnation for slot, state in head.states.items()}
        tasks = Path(f"/proc/{agent.pid}/task").glob("*/children")  # whichever thread started it
        (child,) = [int(pid) for task in tasks for pid in task.read_text().split()]
        submit(head, "r", 0, 400)
        await head.until("its first token", lambda: head.frames("r"))
        os.kill(child, 9)
        failed: Any = await head.ending("r")
        assert (failed.retry, failed.own_exit) == (True, False)
        await head.until("next lives", lambda: all(s.incarnation > before[n] for n, s in head.states.items()))
        await head.ready(3)

    run(tmp_path, story)
