"""Everything is submitted or nothing, and what was submitted is never forgotten."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from exahpc.broker.journal import Journal
from exahpc.broker.memory import Sample, Started
from exahpc.deployment.parse import load
from exahpc.deployment.spec import Deployment
from exahpc.errors import SlurmError
from exahpc.launch import cluster, local, processes, start
from exahpc.slurm.api import JobRecord, Submission, Unanswered
from exahpc.slurm.jobbook import JobBook
from exahpc.wire.folder import Folder, HeadRecord

TOML = 'name="d"\nmodel.path="/m"\n[[pool]]\nname="a"\nreplicas=2\n[[pool]]\nname="b"\n'


class FakeSlurm:
    """Accepts submissions until `refuse`; jobs live until cancelled."""

    name = "fake"

    def __init__(self, refuse: str = "") -> None:
        self.refuse, self.submitted, self.cancelled = refuse, {}, []  # type: tuple[str, dict[str, Submission], list[str]]

    def submit(self, submission: Submission) -> str:
        if self.refuse and submission.name.endswith(self.refuse):
            raise SlurmError("invalid partition")
        job = str(100 + len(self.submitted))
        self.submitted[job] = submission
        return job

    def jobs(self, ids: Sequence[str]) -> list[JobRecord]:
        return [JobRecord(i, "completed" if i in self.cancelled else "pending", "x") for i in ids]

    def requeue(self, job: str, *, exclude: str | None = None) -> None:
        raise AssertionError("nothing is requeued here")

    def named(self, name: str, folder: str) -> set[str]:
        return {"7", "8"}

    def topology(self) -> dict[str, str]:
        return {}

    def cancel(self, job: str, *, signal: str | None = None) -> None:
        self.cancelled.append(job)


def made(tmp_path: Path) -> Folder:
    return Folder.create(tmp_path / "d", TOML)


def test_the_head_comes_first_and_each_pool_is_one_array(tmp_path: Path) -> None:
    client, folder = FakeSlurm(), made(tmp_path)
    wanted = cluster.submissions(load(TOML), folder.path, Path("/s"))
    told: list[tuple[str, str]] = []
    book = cluster.submit(client, folder, wanted, lambda name, job: told.append((name, job)))
    assert told == [("head", "100"), ("a", "101"), ("b", "102")]
    assert [s.array for s in client.submitted.values()] == [None, "0-1", "0-0"]
    assert JobBook.load(folder.path) == book == JobBook("100", {"a": ["101"], "b": ["102"]})
    assert (folder.path / "logs" / "slurm").is_dir()


def test_a_refused_pool_takes_back_what_came_before_and_is_named(tmp_path: Path) -> None:
    client, folder = FakeSlurm(refuse="-b"), made(tmp_path)
    with pytest.raises(SlurmError, match='pool "b" was refused: invalid partition'):
        cluster.submit(client, folder, cluster.submissions(load(TOML), folder.path, Path("/s")))
    assert client.cancelled == ["100", "101"]
    assert cluster.living(client, folder) == []


def test_a_submitter_that_dies_leaves_the_ids_of_what_it_submitted(tmp_path: Path) -> None:
    client, folder = FakeSlurm(), made(tmp_path)

    def dies(name: str, job: str) -> None:
        if name == "a":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cluster.submit(client, folder, cluster.submissions(load(TOML), folder.path, Path("/s")), dies)
    assert [record.id for record in cluster.living(client, folder)] == ["100", "101"]


@pytest.mark.parametrize("placement", ["first-task", "local"])
def test_a_head_without_a_job_of_its_own_is_not_submitted(tmp_path: Path, placement: str) -> None:
    deployment = load(TOML + f'[head]\nplacement = "{placement}"')
    assert list(cluster.submissions(deployment, tmp_path, Path("/s"))) == ["a", "b"]


def test_waiting_makes_no_sense_when_all_jobs_have_ended_but_slurm_is_asked_rarely(tmp_path: Path) -> None:
    client, folder = FakeSlurm(), made(tmp_path)
    deployment = load(TOML)
    cluster.submit(client, folder, cluster.submissions(deployment, folder.path, Path("/s")))
    now = [0.0]
    ended = start.ended(folder, deployment, client, lambda: now[0])
    for job in ("100", "101", "102"):
        client.cancel(job)
    now[0] = start.SLURM_PACE - 0.1
    assert ended() is None
    now[0] = start.SLURM_PACE
    assert "all jobs have ended" in (ended() or "")


def test_a_failed_question_is_no_failed_job(tmp_path: Path) -> None:
    class Deaf(FakeSlurm):
        def jobs(self, ids: Sequence[str]) -> list[JobRecord]:
            raise SlurmError("timeout")

    client, folder = Deaf(), made(tmp_path)
    cluster.submit(client, folder, cluster.submissions(load(TOML), folder.path, Path("/s")))
    now = [0.0]
    ended = start.ended(folder, load(TOML), client, lambda: now[0])
    now[0] = 1000.0
    assert ended() is None


def test_waiting_makes_no_sense_without_the_heads_job_even_when_it_had_reported(tmp_path: Path) -> None:
    client, folder = FakeSlurm(), made(tmp_path)
    cluster.submit(client, folder, cluster.submissions(load(TOML), folder.path, Path("/s")))
    folder.publish_head(HeadRecord(1, "tcp://n1:5000", "n1", 1))
    folder.logs("head", "broker.log").write_text("no space left on device\n")
    now = [0.0]
    ended = start.ended(folder, load(TOML), client, lambda: now[0])
    now[0] = 1000.0
    assert ended() is None
    client.cancel("100")
    now[0] = 2000.0
    assert (ended() or "").startswith(
        "the head's job 100 has ended (its log ends with: no space left on device): "
    )


def test_a_living_head_of_this_machine_submits_lost_jobs_again_but_a_dead_one_does_not(tmp_path: Path) -> None:
    client, folder = FakeSlurm(), made(tmp_path)
    deployment = load(TOML + '[head]\nplacement = "local"')
    cluster.submit(client, folder, cluster.submissions(deployment, folder.path, Path("/s")))
    folder.publish_head(HeadRecord(1, "tcp://n1:5000", "n1", 1))
    for job in list(client.submitted):
        client.cancel(job)
    local.start(folder, {"head": ("sleep", "60")})
    now = [0.0]
    ended = start.ended(folder, deployment, client, lambda: now[0])
    now[0] = 1000.0
    assert ended() is None
    supervisor = local.supervisors(folder)["head"]
    processes.send([supervisor], signal.SIGKILL)
    processes.gone([supervisor], 10)
    assert (ended() or "").startswith("head ended while starting")


CHAIN = f'{TOML}[walltime]\nsuccessors = "chain"\nchain = 2\n'


def test_a_chain_follows_each_task_one_job_after_another_and_down_finds_it(tmp_path: Path) -> None:
    client, folder, deployment = FakeSlurm(), made(tmp_path), load(CHAIN)
    cluster.submit(client, folder, cluster.submissions(deployment, folder.path, Path("/s")))
    assert cluster.chain(client, folder, deployment, Path("/s")) == 6
    book = JobBook.load(folder.path)
    assert book.chain == {"a/0": ["103_0", "104_0"], "a/1": ["105_1", "106_1"], "b/0": ["107_0", "108_0"]}
    assert dependencies(client) == [
        f"afterany:{job}" for job in ("101_0", "103_0", "101_1", "105_1", "102_0", "107_0")
    ]
    assert [client.submitted[job].array for job in ("103", "105", "107")] == ["0", "1", "0"]
    assert len(cluster.living(client, folder)) == 9
    cluster.cancel(client, folder)
    assert client.cancelled == book.jobs


def chained(client: FakeSlurm, folder: Folder, deployment: Deployment) -> None:
    cluster.submit(client, folder, cluster.submissions(deployment, folder.path, Path("/s")))
    cluster.chain(client, folder, deployment, Path("/s"))


def dependencies(client: FakeSlurm) -> list[str]:
    flags = [flag for submission in client.submitted.values() for flag in submission.flags]
    return [flag.removeprefix("--dependency=") for flag in flags if flag.startswith("--dependency=")]


def test_with_a_time_limit_each_job_of_a_chain_starts_before_the_one_before_it_ends(tmp_path: Path) -> None:
    client, folder, deployment = FakeSlurm(), made(tmp_path), load(f"{CHAIN}[slurm]\ntime = '4:00:00'\n")
    cluster.submit(client, folder, cluster.submissions(deployment, folder.path, Path("/s")))
    cluster.chain(client, folder, deployment, Path("/s"))
    waits = {"101_0": 222, "103_0": 225, "101_1": 225, "105_1": 225, "102_0": 225, "107_0": 225}
    assert dependencies(client) == [f"after:{job}+{wait}?afterany:{job}" for job, wait in waits.items()]


def test_a_chain_reckons_with_what_an_earlier_life_has_learned(tmp_path: Path) -> None:
    client, folder, deployment = FakeSlurm(), made(tmp_path), load(f"{CHAIN}[slurm]\ntime = '4:00:00'\n")
    load_of_a = Sample(at=0.0, pool="a", what="load", seconds=720.0)
    Journal(folder.path / "journal", 1, [load_of_a], Started(at=0.0, epoch=1, host="h")).close()
    cluster.submit(client, folder, cluster.submissions(deployment, folder.path, Path("/s")))
    cluster.chain(client, folder, deployment, Path("/s"))
    assert "after:103_0+215?afterany:103_0" in dependencies(client)
    assert "after:107_0+225?afterany:107_0" in dependencies(client)


def test_where_slurm_knows_no_minutes_a_chain_follows_at_the_end(tmp_path: Path) -> None:
    class Old(FakeSlurm):
        def submit(self, submission: Submission) -> str:
            if any("+" in flag for flag in submission.flags):
                raise SlurmError("sbatch says: Batch job submission failed: Job dependency problem")
            return super().submit(submission)

    client, folder, deployment = Old(), made(tmp_path), load(f"{CHAIN}[slurm]\ntime = '4:00:00'\n")
    cluster.submit(client, folder, cluster.submissions(deployment, folder.path, Path("/s")))
    assert cluster.chain(client, folder, deployment, Path("/s")) == 6
    assert dependencies(client)[:2] == ["afterany:101_0", "afterany:103_0"]


@pytest.mark.parametrize("name", ["exahpc-d-a", "exahpc-d-b"])
def test_a_submission_without_an_answer_is_not_repeated_and_whoever_asked_is_told_how_to_find_it(
    tmp_path: Path, name: str
) -> None:
    """Its command line stands in the error, and so the word "dependency"."""

    class Hanging(FakeSlurm):
        def submit(self, submission: Submission) -> str:
            job = super().submit(submission)
            if submission.name == name and (name.endswith("b") or any("+" in flag for flag in submission.flags)):
                raise Unanswered(f"sbatch did not answer: Command {submission.argv()} timed out")
            return job

    client, folder, deployment = Hanging(), made(tmp_path), load(f"{CHAIN}[slurm]\ntime = '4:00:00'\n")
    with pytest.raises(SlurmError, match=f"nobody knows whether .* was submitted .*--name={name}"):
        chained(client, folder, deployment)
    late = max(client.submitted)
    assert client.submitted[late].name == name
    assert sorted([*client.cancelled, late]) == sorted(client.submitted)


@pytest.mark.parametrize("room", range(5))
def test_what_the_job_book_has_no_room_for_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    client, folder, deployment = FakeSlurm(), made(tmp_path), load(CHAIN)
    save, saved = JobBook.save, list[JobBook]()

    def full(book: JobBook, path: Path) -> None:
        if len(saved) >= room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        saved.append(book)
        save(book, path)

    monkeypatch.setattr(JobBook, "save", full)
    with pytest.raises(OSError, match="No space"):
        chained(client, folder, deployment)
    assert sorted(client.cancelled) == sorted(client.submitted)
    assert len(client.submitted) == room + 1


def test_a_chain_follows_only_tasks_that_are_started(tmp_path: Path) -> None:
    """Slurm takes a dependency on a task that was never submitted for fulfilled."""
    scaled = CHAIN.replace("replicas=2", "replicas=2\nscaling.least=1")
    client, folder, deployment = FakeSlurm(), made(tmp_path), load(scaled)
    cluster.submit(client, folder, cluster.submissions(deployment, folder.path, Path("/s")))
    cluster.chain(client, folder, deployment, Path("/s"))
    assert set(JobBook.load(folder.path).chain) == {"a/0", "b/0"}


def test_a_chain_that_is_refused_takes_everything_back(tmp_path: Path) -> None:
    client, folder, deployment = FakeSlurm(), made(tmp_path), load(CHAIN)
    cluster.submit(client, folder, cluster.submissions(deployment, folder.path, Path("/s")))
    client.refuse = "-b"
    with pytest.raises(SlurmError, match="successor of b/0"):
        cluster.chain(client, folder, deployment, Path("/s"))
    assert sorted(client.cancelled) == sorted(client.submitted)
    assert JobBook.load(folder.path).jobs == []
