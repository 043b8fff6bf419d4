"""What succession decides is done once, journalled, noted for `down`, and pruned when it is over."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from exahpc.broker.cluster import MOST_NOTED, Cluster
from exahpc.broker.recovery import Act
from exahpc.broker.values import Coming, Loaded, Retired, Up
from exahpc.errors import ExahpcError, SlurmError
from exahpc.slurm.api import JobRecord, SlurmClient, Unanswered
from exahpc.slurm.jobbook import JobBook
from exahpc.wire import messages as m
from tests.unit.broker.test_broker_recovery_rebuilder import Stage

END = 2000.0


class Play(Stage):
    """Both tasks serve from array 7; task 0 ends at END. Slurm's next job is 8."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.slurm.records = [
            JobRecord(f"7_{task}", "running", "RUNNING", "", (f"n{task}",), 0, end)
            for task, end in ((0, END), (1, 0.0))
        ]
        for task in (0, 1):
            self.says(task, 1, f"7_{task}", "ready")

    def says(self, task: int, incarnation: int, job: str, phase: m.ReplicaPhase) -> None:
        state = m.ReplicaState(task, incarnation, phase)
        message = m.AgentHello("a", task, incarnation, f"n{job}", "tcp://n:1", job, 0, 0, [state], [])
        for action in self.fleet.hello(b"%d.%d" % (task, incarnation), message, self.now):
            match action:
                case Up(view):
                    self.rebuilder.up(view)
                case Coming(view):
                    self.rebuilder.successors.coming(view)
                case Loaded(view, seconds):
                    self.rebuilder.successors.loaded(view, seconds)
                case Retired(key, old):
                    self.rebuilder.successors.retired(key, old)

    def refuses(self, error: SlurmError) -> None:
        """What Slurm says to every submission from now on."""

        def submit(submission: object) -> str:
            self.slurm.asked.append(("submit", submission))
            raise error

        self.slurm.submit = submit  # type: ignore[method-assign]

    async def on(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            for peer in (b"0.1", b"1.1", b"0.2"):
                self.fleet.beat(peer, m.AgentBeat(0, []), self.now)
            await self.until(self.now + 1)

    async def submitted(self) -> None:
        while not any(asked[0] == "submit" for asked in self.slurm.asked):
            assert self.now < END
            await self.on(10)


def test_a_successor_is_submitted_alone_into_its_slot_journalled_and_noted(tmp_path: Path) -> None:
    async def story() -> None:
        play = Play(tmp_path)
        await play.submitted()
        (submission,) = [asked[1] for asked in play.slurm.asked if asked[0] == "submit"]
        assert submission.array == "0"
        assert JobBook.load(play.folder.path).pools == {"a": ["7", "8"]}
        play.slurm.records.append(JobRecord("8_0", "pending", "PENDING"))
        await play.on(60)
        memory = play.memory()
        assert {key: heir.job for key, heir in memory.heirs.items()} == {"a/0": "8_0"}
        assert memory.history == {}, "it is no rebuild"

    asyncio.run(story())


def test_after_the_hand_over_the_journal_names_the_new_job_and_what_was_learned(tmp_path: Path) -> None:
    async def story() -> None:
        play = Play(tmp_path)
        await play.submitted()
        play.slurm.records.append(JobRecord("8_0", "running", "RUNNING", "", ("n3",), 0, 9 * END))
        await play.on(20)
        play.says(0, 2, "8_0", "ready")
        await play.on(30)
        assert play.rebuilder.recovery.job("a/0") == "8_0"
        memory = play.memory()
        assert memory.heirs == {}
        assert list(memory.replaced) == ["7_0"]
        assert [(sample.what, sample.seconds >= 20) for sample in memory.samples] == [("wait", True)]

    asyncio.run(story())


def test_a_refused_successor_is_journalled_as_none(tmp_path: Path) -> None:
    async def story() -> None:
        play = Play(tmp_path)
        play.refuses(SlurmError("no such partition"))
        await play.submitted()
        assert play.memory().heirs == {}
        assert JobBook.load(play.folder.path).pools == {"a": ["7"]}

    asyncio.run(story())


def test_a_successor_that_slurm_took_without_an_answer_is_found_and_noted_for_down(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        play = Play(tmp_path)
        play.refuses(Unanswered("sbatch did not answer"))
        await play.submitted()
        play.slurm.records.append(JobRecord("8_0", "pending", "PENDING"))
        await play.on(120)
        assert [asked[0] for asked in play.slurm.asked] == ["submit"]
        assert JobBook.load(play.folder.path).pools == {"a": ["7", "8"]}
        assert {key: heir.job for key, heir in play.memory().heirs.items()} == {"a/0": "8_0"}

    asyncio.run(story())


def test_an_agent_that_drains_by_itself_is_told_that_it_has_a_successor(tmp_path: Path) -> None:
    async def story() -> None:
        play = Play(tmp_path)
        draining = [m.ReplicaState(0, 1, "draining")]
        assert play.rebuilder.successors.heard("a/0", draining) == []
        await play.submitted()
        assert play.rebuilder.successors.heard("a/0", draining) == [], "another replica serves still"
        play.fleet.beat(b"0.1", m.AgentBeat(1, draining), play.now)
        (tell,) = play.rebuilder.successors.heard("a/0", draining)
        assert isinstance(tell.message, m.DrainAgent)  # type: ignore[union-attr]
        assert not tell.message.requeue  # type: ignore[union-attr]
        assert play.rebuilder.successors.heard("a/0", draining) == [], "told once"
        play.journal.close()

    asyncio.run(story())


def test_a_task_that_ends_before_its_successor_starts_lives_in_its_job(tmp_path: Path) -> None:
    async def story() -> None:
        play = Play(tmp_path)
        await play.submitted()
        play.slurm.records = [JobRecord("7_0", "requeued", "PENDING"), JobRecord("8_0", "pending", "PENDING")]
        play.fleet.gone(b"0.1", m.AgentGone("walltime", True), play.now)
        await play.on(40)
        assert play.rebuilder.recovery.job("a/0") == "8_0"
        verbs = [asked[:2] for asked in play.slurm.asked if asked[0] != "submit"]
        assert verbs[0] == ("cancel", "7_0")
        assert {verb for verb, _ in verbs} <= {"cancel", "hurry"}
        memory = play.memory()
        assert memory.placed["a/0"] == "8_0"
        assert memory.heirs == {}

    asyncio.run(story())


def test_a_job_that_nobody_noted_is_found_by_its_name(tmp_path: Path) -> None:
    async def story() -> None:
        play = Play(tmp_path)
        play.slurm.records = [JobRecord("11_0", "pending", "PENDING")]
        cluster = Cluster(play.deployment, play.folder, lambda: play.slurm)
        ours = "exahpc-test-a", str(play.folder.path)
        play.slurm.named = lambda *asked: {"7", "11"} if asked == ours else set()  # type: ignore[method-assign]
        pools, _ = await cluster.query(search=True)
        assert pools == {"a": ["7", "11"]}
        play.journal.close()

    asyncio.run(story())


def test_a_job_that_the_book_has_no_room_for_is_submitted_once_and_noted_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def story() -> None:
        play = Play(tmp_path)
        cluster = Cluster(play.deployment, play.folder, lambda: play.slurm)
        with monkeypatch.context() as patched:
            patched.setattr("exahpc.slurm.jobbook.write_atomic", full)
            job = await cluster.perform(Act("a/0", "resubmit", "7_0", "", (), "lost"))
            array = job.partition("_")[0]
            pools, _ = await cluster.query([array])
            assert pools == {"a": ["7"]}
            await cluster.cancel_pools()
            assert {asked[1] for asked in play.slurm.asked if asked[0] == "cancel"} == {"7", array}
        pools, _ = await cluster.query([array])
        assert pools == {"a": ["7", array]}
        play.journal.close()

    asyncio.run(story())


@pytest.mark.parametrize("damaged", [True, False])
def test_a_job_is_submitted_once_also_where_the_book_cannot_be_read_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    def stale(path: Path) -> bytes:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    async def story() -> None:
        play = Play(tmp_path)
        cluster, book = Cluster(play.deployment, play.folder, lambda: play.slurm), JobBook.load(play.folder.path)
        with monkeypatch.context() as patched:
            patched.setattr(Path, "read_bytes", (lambda path: b"{") if damaged else stale)
            job = await cluster.perform(Act("a/0", "resubmit", "7_0", "", (), "lost"))
            with pytest.raises(ExahpcError):
                await cluster.query()
        array = job.partition("_")[0]
        pools, _ = await cluster.query()
        assert pools == {"a": [*book.pools["a"], array]}
        play.journal.close()

    asyncio.run(story())


def test_a_client_that_finds_no_room_to_begin_is_a_slurm_that_cannot_be_asked(tmp_path: Path) -> None:
    def full() -> SlurmClient:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def story() -> None:
        play = Play(tmp_path)
        with pytest.raises(SlurmError, match="no room to write"):
            await Cluster(play.deployment, play.folder, full).query()
        play.journal.close()

    asyncio.run(story())


def test_jobs_that_are_over_leave_the_book_so_that_it_does_not_grow_for_ever(tmp_path: Path) -> None:
    async def story() -> None:
        play = Play(tmp_path)
        many = [str(number) for number in range(100, 100 + MOST_NOTED)]
        JobBook("6", {"a": ["7", *many]}).save(play.folder.path)
        play.slurm.records = [
            JobRecord("110_0", "running", "RUNNING"),
            JobRecord("111_1", "completed", "COMPLETED"),
        ]
        cluster = Cluster(play.deployment, play.folder, lambda: play.slurm)
        await cluster.query(["120"])
        assert JobBook.load(play.folder.path).pools == {"a": ["7", "110", "120"]}
        play.journal.close()

    asyncio.run(story())


def test_a_waiting_job_of_a_parked_task_is_cancelled_and_a_woken_task_submitted(tmp_path: Path) -> None:
    async def story() -> None:
        play = Play(tmp_path)
        play.fleet.park("a/1", 0.0, "not needed", play.now)
        play.fleet.gone(b"1.1", m.AgentGone("drained", False), play.now)
        play.slurm.records[1] = JobRecord("7_1", "requeued", "PENDING")
        await play.on(30)
        assert ("cancel", "7_1") in play.slurm.asked
        play.slurm.records[1] = JobRecord("7_1", "failed", "CANCELLED by 0")
        await play.on(130)
        play.fleet.unpark("a/1", play.now)
        await play.on(2)
        assert [asked[1].array for asked in play.slurm.asked if asked[0] == "submit"] == ["1"]
        play.journal.close()

    asyncio.run(story())
