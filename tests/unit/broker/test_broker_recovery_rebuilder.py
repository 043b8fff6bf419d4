"""Recovery's deeds on a scripted Slurm: what is asked of it, journalled, and noted in the job book."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from exahpc.broker.cluster import Cluster, avoiding
from exahpc.broker.fleet import Fleet
from exahpc.broker.journal import Journal, replay
from exahpc.broker.memory import Memory, Started
from exahpc.broker.rebuilder import Rebuilder
from exahpc.broker.recovery import Recovery
from exahpc.broker.succession import Succession
from exahpc.broker.successors import Successors
from exahpc.broker.values import Up
from exahpc.deployment.parse import load
from exahpc.errors import SlurmError
from exahpc.slurm.api import JobRecord, RequeueDisabled, Submission
from exahpc.slurm.jobbook import JobBook
from exahpc.wire import messages as m
from exahpc.wire.folder import Folder

TOML = """
name = "test"
[model]
path = "/models/none"
[[pool]]
name = "a"
replicas = 2
"""


class Slurm:
    """A SlurmClient that answers what it is told and writes down what it is asked."""

    name = "scripted"

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.records: list[JobRecord] = []
        self.trouble: SlurmError | None = None
        self.disabled = False
        self.leaves: dict[str, str] | None = {}

    def submit(self, submission: Submission) -> str:
        self.asked.append(("submit", submission))
        return "8"

    def jobs(self, ids: Sequence[str]) -> list[JobRecord]:
        if self.trouble:
            raise self.trouble
        return self.records

    def requeue(self, job: str, *, exclude: str | None = None) -> None:
        self.asked.append(("requeue", job, exclude))
        if self.disabled:
            raise RequeueDisabled("presently disabled")

    def hurry(self, job: str) -> bool:
        self.asked.append(("hurry", job))
        raise SlurmError("not now")

    def named(self, name: str, folder: str) -> set[str]:
        return {"7", "8"}

    def topology(self) -> dict[str, str]:
        if self.leaves is None:
            raise SlurmError("not now")
        return self.leaves

    def cancel(self, job: str, *, signal: str | None = None) -> None:
        self.asked.append(("cancel", job))


class Stage:
    def __init__(self, path: Path) -> None:
        self.folder = Folder.create(path / "f", TOML)
        JobBook("6", {"a": ["7"]}).save(self.folder.path)
        self.deployment = load(TOML)
        self.slurm = Slurm()
        self.now = 0.0
        self.fleet = Fleet(self.deployment, 1, 0.0)
        self.journal = Journal(self.folder.path / "journal", 1, [], Started(at=0.0, epoch=1, host="h"))
        self.tasks: set[asyncio.Task[None]] = set()
        self.direct(Recovery(self.deployment, Memory(), 0.0))

    def direct(self, recovery: Recovery) -> None:
        cluster = Cluster(self.deployment, self.folder, lambda: self.slurm)
        hands = (self.fleet, self.journal, lambda: self.now, self.spawn)
        successors = Successors(cluster, Succession(self.deployment, Memory(), 0.0), recovery, *hands)
        self.rebuilder = Rebuilder(cluster, recovery, successors, *hands)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.add(asyncio.get_running_loop().create_task(work))

    def hello(self, task: int, job: str, incarnation: int = 1) -> None:
        message = m.AgentHello("a", task, incarnation, f"n{task}", "tcp://n:1", job, 0, 0, [], [])
        for action in self.fleet.hello(b"p%d" % task, message, self.now):
            if isinstance(action, Up):
                self.rebuilder.up(action.view)

    async def until(self, now: float) -> None:
        while self.now < now:
            self.now += 1.0
            self.fleet.tick(self.now)
            await self.rebuilder.turn()
            while self.tasks:
                await self.tasks.pop()

    def memory(self) -> Memory:
        self.journal.close()
        return replay(self.folder.path / "journal")


RUNNING = [JobRecord(f"7_{task}", "running", "RUNNING", "", (f"n{task}",)) for task in (0, 1)]


def test_a_lost_agent_of_a_running_job_is_requeued_by_its_array_id_off_its_node(tmp_path: Path) -> None:
    async def story() -> None:
        stage = Stage(tmp_path)
        stage.slurm.records = RUNNING
        await stage.until(1)
        for task in (0, 1):
            stage.hello(task, f"7_{task}")
        for _ in range(80):
            stage.fleet.beat(b"p0", m.AgentBeat(0, []), stage.now)
            await stage.until(stage.now + 1)
        assert stage.slurm.asked == [("requeue", "7_1", "n1")]
        memory = stage.memory()
        assert list(memory.excluded) == ["n1"]
        assert memory.open == {}
        assert [kind for _, kind in memory.history["a/1"]] == ["requeue"]

    asyncio.run(story())


def test_a_requeued_task_is_hurried_and_a_refusal_does_no_harm(tmp_path: Path) -> None:
    async def story() -> None:
        stage = Stage(tmp_path)
        stage.slurm.records = [RUNNING[0], JobRecord("7_1", "requeued", "PENDING", "BeginTime")]
        stage.hello(0, "7_0")
        await stage.until(1)
        for _ in range(40):
            stage.fleet.beat(b"p0", m.AgentBeat(0, []), stage.now)
            await stage.until(stage.now + 1)
        assert set(stage.slurm.asked) == {("hurry", "7_1")}

    asyncio.run(story())


def test_an_ended_task_is_submitted_alone_into_its_slot_and_down_will_find_it(tmp_path: Path) -> None:
    async def story() -> None:
        stage = Stage(tmp_path)
        stage.slurm.records = [JobRecord("7_1", "failed", "TIMEOUT"), RUNNING[0]]
        stage.hello(0, "7_0")
        for _ in range(25):
            stage.fleet.beat(b"p0", m.AgentBeat(0, []), stage.now)
            await stage.until(stage.now + 1)
        [(verb, submission)] = stage.slurm.asked
        assert (verb, submission.array) == ("submit", "1")
        assert JobBook.load(stage.folder.path) == JobBook("6", {"a": ["7", "8"]})
        assert stage.memory().placed == {"a/1": "8_1"}

    asyncio.run(story())


def test_an_id_that_slurm_gives_out_again_is_a_new_job(tmp_path: Path) -> None:
    """Slurm's state was lost, and its numbers begin anew."""

    async def story() -> None:
        stage = Stage(tmp_path)
        stage.fleet = Fleet(stage.deployment, 1, 0.0, retired=["8_0"])
        memory = Memory(replaced={"8_0": 0.0}, cancelled={"8_0": 0.0})
        stage.direct(Recovery(stage.deployment, memory, 0.0))
        stage.hello(0, "7_0")
        stage.slurm.records = [JobRecord("7_0", "lost", "unknown to Slurm")]
        while not stage.slurm.asked:
            await stage.until(stage.now + 10)
        stage.hello(0, "8_0", incarnation=2)
        assert stage.fleet.view("a/0").job == "8_0"
        assert stage.rebuilder.recovery.job("a/0") == "8_0"

    asyncio.run(story())


def test_where_requeue_is_disabled_the_journal_remembers_it(tmp_path: Path) -> None:
    async def story() -> None:
        stage = Stage(tmp_path)
        stage.slurm.records, stage.slurm.disabled = RUNNING, True
        await stage.until(1)
        stage.hello(0, "7_0")
        stage.hello(1, "7_1")
        await stage.until(62)
        verbs = [asked[0] for asked in stage.slurm.asked]
        assert verbs[0] == "requeue"
        assert "cancel" in verbs
        assert list(stage.memory().no_requeue) == ["a"]

    asyncio.run(story())


def test_a_full_disk_stops_deeds_and_not_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    async def story() -> None:
        stage = Stage(tmp_path)
        for task in (0, 1):
            stage.hello(task, f"7_{task}")
        stage.slurm.records = [JobRecord("7_0", "failed", "FAILED"), JobRecord("7_1", "suspended", "SUSPENDED")]
        with monkeypatch.context() as disk:
            disk.setattr(Journal, "_write", full)
            disk.setattr(JobBook, "save", full)
            await stage.until(1200)
            assert stage.slurm.asked == [], "another broker would not know of it"
        with monkeypatch.context() as disk:
            disk.setattr(JobBook, "save", full)
            while not stage.slurm.asked:
                await stage.until(stage.now + 10)
            assert stage.rebuilder.recovery.job("a/0") == "8_0", "it lives, noted or not"
            stage.hello(0, "8_0")
            await stage.until(stage.now + 10)
        assert stage.memory().placed["a/0"] == "8_0"

    asyncio.run(story())


def test_a_slurm_that_cannot_be_asked_is_told_in_the_notes_and_nothing_is_done(tmp_path: Path) -> None:
    async def story() -> None:
        stage = Stage(tmp_path)
        stage.slurm.trouble = SlurmError("Socket timed out")
        await stage.until(400)
        assert stage.slurm.asked == []
        [note] = stage.rebuilder.notes(400.0)
        assert "Socket timed out" in note
        stage.slurm.trouble = None
        await stage.until(411)
        assert stage.rebuilder.notes(411.0) == []

    asyncio.run(story())


def test_a_deed_is_not_done_when_its_agent_is_back_before_it_begins(tmp_path: Path) -> None:
    async def story() -> None:
        stage = Stage(tmp_path)
        stage.slurm.records = RUNNING
        await stage.until(1)
        stage.hello(1, "7_1")
        spawned: list[Any] = []
        stage.rebuilder._spawn = spawned.append
        while not spawned:
            await stage.until(stage.now + 1)
        stage.fleet.beat(b"p1", m.AgentBeat(0, []), stage.now)
        for work in spawned:
            await work
        assert ("requeue", "7_1", "n1") not in stage.slurm.asked

    asyncio.run(story())


def test_an_array_that_nobody_noted_is_noted_when_its_agent_says_hello(tmp_path: Path) -> None:
    async def story() -> None:
        stage = Stage(tmp_path)
        stage.hello(0, "9_0")
        while stage.tasks:
            await stage.tasks.pop()
        assert JobBook.load(stage.folder.path).pools == {"a": ["7", "9"]}
        assert stage.rebuilder.recovery.job("a/0") == "9_0"

    asyncio.run(story())


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--nodes=1",), ("--nodes=1", "--exclude=n1,n2")),
        (("--exclude=bad", "--nodes=1"), ("--nodes=1", "--exclude=bad,n1,n2")),
    ],
)
def test_suspect_nodes_are_added_to_those_that_the_user_excludes(
    flags: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    submission = Submission("n", "s", (), flags)
    assert avoiding(submission, ("n1", "n2")).flags == expected
    assert avoiding(submission, ()) == submission


def test_switches_that_slurm_does_not_tell_at_once_are_asked_for_again(tmp_path: Path) -> None:
    async def story() -> None:
        stage = Stage(tmp_path)
        stage.slurm.records = RUNNING
        stage.slurm.leaves = None
        await stage.until(30)
        assert not stage.rebuilder.recovery.network.known
        stage.slurm.leaves = {"n0": "leaf1"}
        await stage.until(120)
        assert stage.rebuilder.recovery.network.leaves == {"n0": "leaf1"}

    asyncio.run(story())
