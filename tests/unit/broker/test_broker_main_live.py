"""The broker as a process, with scripted agents and entries on real links."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from exahpc.slurm.jobbook import JobBook
from exahpc.wire import link
from exahpc.wire import messages as m
from exahpc.wire.folder import Folder, HeadRecord

TOML = """
name = "test"
[model]
path = "/models/none"
[launcher]
kind = "local"
[recovery]
beat_seconds = 0.5
[[pool]]
name = "a"
replicas = 4
replicas_per_task = 2
"""

PATIENT = TOML.replace("beat_seconds = 0.5", "beat_seconds = 10")

ON_SLURM = TOML.replace('kind = "local"', 'kind = "slurm"\ninterface = "lo"')


async def until(true: Callable[[], Any], what: str, seconds: float = 20.0) -> Any:
    """The first true answer. Fails, naming `what`, when none comes."""
    for _ in range(int(seconds / 0.02)):
        if found := true():
            return found
        await asyncio.sleep(0.02)
    pytest.fail(f"not within {seconds} s: {what}")


class Peer:
    """A scripted peer: says `hello` on each connection and keeps what it is told."""

    def __init__(self, ctx: Any, folder: Folder, answers: Any, hello: Callable[[], m.Message]) -> None:
        self.told: list[Any] = []
        self.epoch = 0
        self._hello = hello
        self.client = link.Client(
            ctx,
            folder.fleet_key(),
            lambda: head.address if (head := folder.head()) else None,
            answers,
            self._on_message,
            on_up=lambda: self.send(self._hello()),
            longest_wait=0.5,
        )

    def _on_message(self, message: Any) -> None:
        if isinstance(message, m.Welcome):
            self.epoch = max(self.epoch, message.epoch)
        self.told.append(message)

    def send(self, message: m.Message) -> bool:
        return self.client.send(message)

    def of(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.told if isinstance(message, kind)]


class Agent(Peer):
    def __init__(self, ctx: Any, folder: Folder, task: int, incarnation: int = 1) -> None:
        self.task, self.incarnation = task, incarnation
        self.replicas = {s: m.ReplicaState(s, 1, "ready") for s in (2 * task, 2 * task + 1)}
        self.beating = True
        super().__init__(ctx, folder, m.BrokerToAgent, self._say_hello)
        self._beats = asyncio.get_running_loop().create_task(self._beat())

    def _say_hello(self) -> m.AgentHello:
        return m.AgentHello(
            pool="a",
            task=self.task,
            incarnation=self.incarnation,
            node=f"n{self.task}",
            address=f"tcp://127.0.0.1:{self.task + 1}",
            job="",
            restarts=0,
            epoch=self.epoch,
            replicas=list(self.replicas.values()),
            leases=[],
        )

    async def _beat(self) -> None:
        number = 0
        while True:
            await asyncio.sleep(0.5)
            if self.beating:
                number += 1
                self.send(m.AgentBeat(number, []))

    def phase(self, slot: int, phase: m.ReplicaPhase, incarnation: int = 1) -> None:
        self.replicas[slot] = m.ReplicaState(slot, incarnation, phase, story="exit code 1")
        self.send(m.AgentBeat(0, [self.replicas[slot]]))


class Entry(Peer):
    def __init__(self, ctx: Any, folder: Folder) -> None:
        super().__init__(ctx, folder, m.BrokerToEntry, lambda: m.EntryHello(0, os.getpid(), "http://x/v1"))

    @property
    def tables(self) -> list[m.FleetTable]:
        return self.of(m.FleetTable)

    @property
    def slots(self) -> set[tuple[int, int]]:
        """(slot, incarnation) that take traffic by the newest table."""
        if not self.tables:
            return set()
        return {(r.slot, r.incarnation) for a in self.tables[-1].agents for r in a.replicas}


class World:
    def __init__(self, path: Path, toml: str) -> None:
        self.folder = Folder.create(path / "deployment", toml)
        if toml == ON_SLURM:
            JobBook("6", {"a": ["7"]}).save(self.folder.path)
        self.ctx = link.context()
        self.peers: list[Peer] = []
        self.process: subprocess.Popen[bytes] | None = None
        self.log = path / "broker.log"

    def start(self) -> subprocess.Popen[bytes]:
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "exahpc.broker", "--folder", str(self.folder.path)], stderr=log
            )
        return self.process

    async def head(self, epoch: int) -> HeadRecord:
        def look() -> HeadRecord | None:
            head = self.folder.head()
            return head if head is not None and head.epoch >= epoch else None

        found: HeadRecord = await until(look, f"head of epoch {epoch}; log: {self.log.read_text()}")
        return found

    async def ask(self, message: m.Message) -> Any:
        head = self.folder.head()
        assert head is not None
        return await asyncio.to_thread(link.ask, self.folder.fleet_key(), head.address, message, m.BrokerToClient)

    def agent(self, task: int, incarnation: int = 1) -> Agent:
        agent = Agent(self.ctx, self.folder, task, incarnation)
        self.peers.append(agent)
        return agent

    def entry(self) -> Entry:
        entry = Entry(self.ctx, self.folder)
        self.peers.append(entry)
        return entry


@contextlib.asynccontextmanager
async def world(path: Path, toml: str = TOML) -> AsyncIterator[World]:
    made = World(path, toml)
    try:
        made.start()
        yield made
    finally:
        for peer in made.peers:
            if isinstance(peer, Agent):
                peer._beats.cancel()
            peer.client.close()
        if made.process is not None:
            made.process.kill()
            made.process.wait()
        made.ctx.destroy(linger=0)


ALL = {(0, 1), (1, 1), (2, 1), (3, 1)}


def test_hellos_fill_the_table_and_phases_change_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path) as w:
            entry, a0, _ = w.entry(), w.agent(0), w.agent(1)
            await until(lambda: entry.slots == ALL, "all replicas route")
            assert entry.epoch == 1
            a0.phase(1, "down")
            await until(lambda: entry.slots == ALL - {(1, 1)}, "a replica that is down leaves")
            reply = await w.ask(m.StatusQuery())
            assert (reply.wanted, reply.ready) == (4, 3)
            assert [agent.alive for agent in reply.agents] == [True, True]
            assert any("replica 1 is down: exit code 1" in note for note in reply.notes), reply.notes
            assert (reply.entries[0].index, reply.entries[0].url) == (0, "http://x/v1")
            a0.phase(1, "ready", 2)
            await until(lambda: (1, 2) in entry.slots, "its next incarnation routes")
            versions = [table.version for table in entry.tables]
            assert versions == sorted(set(versions)), "versions only grow"

    asyncio.run(story())


def test_a_silent_agent_is_lost_and_comes_back_with_a_beat(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path) as w:
            entry, a0, _ = w.entry(), w.agent(0), w.agent(1)
            await until(lambda: entry.slots == ALL, "all replicas route")
            a0.beating = False
            await until(lambda: entry.slots == {(2, 1), (3, 1)}, "the silent agent's routes leave")
            a0.beating = True
            await until(lambda: entry.slots == ALL, "heard again")

    asyncio.run(story())


def test_a_killed_broker_returns_at_its_old_address_and_no_route_is_ever_missing(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path, PATIENT) as w:
            entry, quick, a1 = w.entry(), w.agent(0), w.agent(1)
            await until(lambda: entry.slots == ALL, "all replicas route")
            first = await w.head(1)
            seen = len(entry.tables)
            assert w.process is not None
            a1.client.close()  # the second agent is slower than the restart: its routes must stay meanwhile
            w.process.kill()
            w.process.wait()
            w.start()
            second = await w.head(2)
            assert (second.epoch, second.address) == (2, first.address)
            await until(lambda: len(entry.tables) > seen, "a table of the new broker")
            await until(lambda: quick.epoch == 2, "the quick agent is back")
            reply = await w.ask(m.StatusQuery())
            assert [agent.alive for agent in reply.agents] == [True, False]
            assert any("1 agents are not heard yet" in note for note in reply.notes), reply.notes
            back = w.agent(1)
            await until(lambda: back.epoch == 2, "the slow agent is back")
            reply = await w.ask(m.StatusQuery())
            assert (reply.epoch, reply.ready) == (2, 4)
            for table in entry.tables[seen:]:
                assert table.epoch == 2
                assert {(r.slot, r.incarnation) for a in table.agents for r in a.replicas} == ALL

    asyncio.run(story())


def test_a_broker_ends_with_0_when_an_agent_obeys_a_newer_one(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path) as w:
            await w.head(1)
            agent = w.agent(0)
            agent.epoch = 7
            assert w.process is not None
            process = w.process
            await until(lambda: process.poll() is not None, "the superseded broker ends")
            assert process.returncode == 0
            assert "obeys the broker of epoch 7" in w.log.read_text()

    asyncio.run(story())


def test_a_second_broker_ends_the_first(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path) as w:
            entry, _, _ = w.entry(), w.agent(0), w.agent(1)
            await until(lambda: entry.slots == ALL, "all replicas route")
            first = w.process
            assert first is not None
            w.start()
            await w.head(2)
            await until(lambda: first.poll() is not None, "the first broker ends")
            assert first.returncode == 0
            await until(lambda: entry.epoch == 2 and entry.slots == ALL, "the entry follows the second")

    asyncio.run(story())


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system can only be mounted by root")
def test_a_broker_that_begins_on_a_full_disk_waits_for_room_instead_of_crashing(tmp_path: Path) -> None:
    async def story(small: Path) -> None:
        async with world(small) as w:
            await w.head(1)
            assert w.process is not None
            w.process.kill()
            w.process.wait()
            with open(small / "filler", "wb", 0) as filler, contextlib.suppress(OSError):
                while True:
                    filler.write(b"x" * 4096)
            process = w.start()
            epochs = w.folder.path / "epochs"
            await until(lambda: max(map(int, os.listdir(epochs))) > 3, "it tries again and again")
            assert process.poll() is None
            (small / "filler").unlink()
            await w.head(2)
            assert isinstance(await w.ask(m.StatusQuery()), m.StatusReply)

    small = tmp_path / "small"
    small.mkdir()
    if os.system(f"mount -t tmpfs -o size=256k tmpfs {small}"):
        pytest.skip("nothing can be mounted here")
    try:
        asyncio.run(story(small))
    finally:
        os.system(f"umount -l {small}")


def test_an_older_record_that_was_written_late_is_put_right(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path) as w:
            own = await w.head(1)
            w.folder.publish_head(HeadRecord(0, "tcp://127.0.0.1:1", "elsewhere", 1))
            await until(lambda: w.folder.head() == own, "the record names the younger broker")

    asyncio.run(story())


@pytest.mark.parametrize(
    ("toml", "number", "code"),
    [(TOML, signal.SIGTERM, 143), (ON_SLURM, signal.SIGTERM, 143), (ON_SLURM, signal.SIGUSR1, 75)],
)
def test_a_signal_ends_the_broker_without_draining_anybody(
    tmp_path: Path, toml: str, number: int, code: int
) -> None:
    async def story() -> None:
        async with world(tmp_path, toml) as w:
            await w.head(1)
            agent = w.agent(0)
            await until(lambda: agent.epoch == 1, "welcome")
            process = w.process
            assert process is not None
            process.send_signal(number)
            await until(lambda: process.poll() is not None, "the end")
            assert process.returncode == code
            assert not agent.of(m.DrainAgent)
            assert w.folder.head() is not None, "peers go on knocking at the same door"

    asyncio.run(story())


def test_a_head_that_has_no_job_of_its_own_takes_no_notice_of_a_walltime_warning(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path) as w:
            await w.head(1)
            assert w.process is not None
            w.process.send_signal(signal.SIGUSR1)
            assert (await w.ask(m.StatusQuery())).epoch == 1
            assert w.process.poll() is None

    asyncio.run(story())


def test_a_broker_whose_slurm_does_not_answer_serves_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no Slurm command there

    async def story() -> None:
        async with world(tmp_path, ON_SLURM) as w:
            entry, _, _ = w.entry(), w.agent(0), w.agent(1)
            await until(lambda: entry.slots == ALL, "all replicas route")
            for _ in range(100):
                reply = await w.ask(m.StatusQuery())
                if any("Slurm could not be asked" in note for note in reply.notes):
                    break
                await asyncio.sleep(0.2)
            assert any("Slurm could not be asked" in note for note in reply.notes), reply.notes
            assert reply.ready == 4

    asyncio.run(story())


def test_drain_tells_everybody_waits_for_their_good_byes_and_ends_with_0(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path) as w:
            entry, a0, a1 = w.entry(), w.agent(0), w.agent(1)
            await until(lambda: entry.slots == ALL, "all replicas route")
            assert await w.ask(m.DrainAll(30.0)) == m.Accepted()
            await until(lambda: a0.of(m.DrainAgent) and a1.of(m.DrainAgent), "all are told")
            await until(lambda: entry.slots == set(), "nothing routes to a draining agent")
            process = w.process
            assert process is not None
            a0.send(m.AgentGone("drained", False))
            reply = await w.ask(m.StatusQuery())
            assert reply.notes[0] == "the deployment is draining"
            assert process.poll() is None, "one agent still drains"
            a1.send(m.AgentGone("drained", False))
            await until(lambda: process.poll() is not None, "the head ends")
            assert process.returncode == 0
            assert w.folder.head() is None

    asyncio.run(story())


def test_a_peer_without_the_key_and_a_message_that_is_none_change_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with world(tmp_path) as w:
            head = await w.head(1)
            stranger = link.FleetKey.make()
            mixed = link.FleetKey(w.folder.fleet_key().public, stranger.secret)
            for key in (stranger, mixed):
                with pytest.raises(link.LinkError):
                    await asyncio.to_thread(link.ask, key, head.address, m.StatusQuery(), m.BrokerToClient, 1.0)
            with pytest.raises(link.LinkError):  # a broker's message, not one to a broker
                await asyncio.to_thread(
                    link.ask, w.folder.fleet_key(), head.address, m.Accepted(), m.BrokerToClient, 1.0
                )
            assert (await w.ask(m.StatusQuery())).epoch == 1

    asyncio.run(story())
