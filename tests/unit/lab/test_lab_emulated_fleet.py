"""Laws of emulated agents over real sockets: they say and do what broker and entries expect of agents."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from exahpc.deployment.parse import load
from exahpc.lab.emulated.fleet import EmulatedAgent
from exahpc.lab.emulated.model import Latency
from exahpc.wire import messages as m
from exahpc.wire.folder import Folder
from tests.scripted_head import Head

TOML = """
name = "d"
[model]
path = "/nowhere"
name = "emulated"
[[pool]]
name = "a"
replicas = 12
replicas_per_task = 3
max_sequences = 2
[recovery]
beat_seconds = 0.2
[launcher]
kind = "local"
"""
FAST = Latency(base_seconds=0.002, each_seconds=0.0, prompt_seconds=0.001)


def run(home: Path, story: Callable[[Head], Awaitable[None]], latency: Latency = FAST) -> None:
    async def whole() -> None:
        head = Head(Folder.create(home / "d", TOML))
        deployment = load(TOML)
        agents = [
            EmulatedAgent(head.folder, deployment, deployment.pool[0], task, latency, 0.01) for task in range(4)
        ]
        try:
            await head.ready(12)
            await story(head)
        finally:
            for agent in agents:
                agent.close()
            head.close()

    asyncio.run(whole())


def test_all_replicas_come_up_under_a_label_and_a_quiet_fleet_beats_with_no_news(tmp_path: Path) -> None:
    async def story(head: Head) -> None:
        assert sorted(head.states) == list(range(12))
        assert [head.hellos[task].node for task in range(4)] == [f"emulated-{task}" for task in range(4)]
        assert len({hello.address for hello in head.hellos.values()}) == 4, "each has its own sockets"
        await head.until("their first beats", lambda: all(s.kv_free for s in head.states.values()))
        known, beats = dict(head.states), head.beats
        await head.until("beats", lambda: head.beats >= beats + 12)
        assert head.states == known

    run(tmp_path, story)


def test_a_stream_gets_each_token_once_and_one_ending(tmp_path: Path) -> None:
    async def story(head: Head) -> None:
        await head.connect(1)
        head.submit("r", 3, 20)
        done = await head.ending("r")
        assert (done.completion_tokens, done.data) == (20, b"data: [DONE]\n\n")
        frames = head.frames("r")
        assert [f.index for f in frames] == [sum(len(f.ids) for f in frames[:i]) for i in range(len(frames))]
        assert sum(len(f.ids) for f in frames) == 20
        text = b"".join(f.data for f in frames)
        assert (text.count(b'" word"'), text.count(b'"length"'), frames[-1].finished) == (20, 1, True)
        assert b'"model":"emulated"' in text, "clients are told"
        head.submit("plain", 4, 3, stream=False)
        body = msgspec.json.decode((await head.ending("plain")).data)
        assert (body["model"], body["choices"][0]["text"]) == ("emulated", " word word word")

    run(tmp_path, story)


def test_what_was_interrupted_goes_on_where_it_was(tmp_path: Path) -> None:
    async def story(head: Head) -> None:
        await head.connect(0)
        head.submit("r", 0, 10, resume=[m.Resume(0, [49] * 7, 35)], first=False)
        done = await head.ending("r")
        frames = head.frames("r")
        assert (done.completion_tokens, frames[0].index, sum(len(f.ids) for f in frames)) == (10, 7, 3)
        assert frames[-1].sent == 50

    run(tmp_path, story)


def test_a_full_or_wrong_replica_is_busy_and_a_cancelled_request_gives_back_its_place(tmp_path: Path) -> None:
    async def story(head: Head) -> None:
        await head.connect(0)
        for name in ("a", "b", "c"):
            head.submit(name, 2, 500)
        assert isinstance(await head.ending("c"), m.Busy), "two run at once"
        head.submit("elsewhere", 3, 5)
        assert isinstance(await head.ending("elsewhere"), m.Busy), "a slot of another agent"
        assert head.entry is not None
        head.entry.send(m.Cancel("a"))
        head.submit("d", 2, 5)
        assert isinstance(await head.ending("d"), m.Done)

    run(tmp_path, story, Latency(base_seconds=0.02, each_seconds=0.0, prompt_seconds=0.001))


def test_a_restarted_replica_loses_its_requests_and_comes_back_with_a_higher_incarnation(tmp_path: Path) -> None:
    async def story(head: Head) -> None:
        await head.connect(0)
        before = head.states[1]
        head.submit("r", 1, 900)
        await head.until("its first token", lambda: head.frames("r"))
        head.server.send(head.peers[0], m.RestartReplica(1, 1, before.incarnation, "test"))
        failed = await head.ending("r")
        assert (failed.retry, failed.own_exit) == (True, False)
        await head.until("its next life", lambda: head.states[1].incarnation > before.incarnation)
        await head.ready(12)

    run(tmp_path, story)


def test_a_drained_agent_says_good_bye_after_its_requests(tmp_path: Path) -> None:
    async def story(head: Head) -> None:
        await head.connect(0)
        head.submit("r", 0, 60)
        await head.until("its first token", lambda: head.frames("r"))
        head.server.send(head.peers[0], m.DrainAgent(1, 60.0, "test"))
        head.submit("late", 0, 5)
        assert isinstance(await head.ending("late"), m.Busy)
        assert isinstance(await head.ending("r"), m.Done)
        await head.until("good-bye", lambda: head.gone)

    run(tmp_path, story, Latency(base_seconds=0.02, each_seconds=0.0, prompt_seconds=0.001))
