"""The contract of SlurmClient, on a live cluster. All implementations must hold it.

EXAHPC_SLURM_CLIENT=pyslurm runs it with pyslurm (see run-pyslurm-root); otherwise the command line is tested, and
(long) the same through a watcher.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exahpc.errors import SlurmError
from exahpc.slurm import choose, features
from exahpc.slurm.api import JobRecord, RequeueDisabled, SlurmClient, Submission
from exahpc.slurm.remote import Remote, Watcher

from .conftest import DevCluster, wait_for

pytestmark = pytest.mark.cluster

WORK = Path(__file__).with_name("work.sh")


@pytest.fixture(params=["own", pytest.param("watched", marks=pytest.mark.long)])
def client(request: pytest.FixtureRequest, cluster: DevCluster, tmp_path: Path) -> Iterator[SlurmClient]:
    features.config.cache_clear()
    found = choose(os.environ.get("EXAHPC_SLURM_CLIENT") or "cli")[0]
    if request.param == "own":
        yield found
        return
    over = threading.Event()
    watcher = Watcher(tmp_path / "deployment", found)

    def watch() -> None:
        while not over.wait(0.05):
            watcher.turn()

    thread = threading.Thread(target=watch)
    thread.start()
    yield Remote(tmp_path / "deployment")
    over.set()
    thread.join()
    watcher.close()


class Work:
    """Submits work.sh and reads what it wrote."""

    def __init__(self, client: SlurmClient, directory: Path) -> None:
        self.client, self.directory = client, directory

    def submit(self, seconds: int, *flags: str, array: str | None = "0-1", code: int = 0, name: str = "w") -> str:
        base = (
            "--nodes=1",
            "--ntasks-per-node=1",
            "--cpus-per-task=1",
            "--open-mode=append",
            "--export=NIL",
            f"--chdir={self.directory}",
            f"--output={self.directory}/out/%x-%A_%a.out",
        )
        requeue = () if "--no-requeue" in flags else ("--requeue",)
        arguments = (str(self.directory), str(seconds), str(code))
        return self.client.submit(Submission(name, str(WORK), arguments, (*base, *requeue, *flags), array))

    def record(self, job: str) -> JobRecord:
        (record,) = self.client.jobs([job])
        return record

    def starts(self, job: str) -> list[list[str]]:
        """(node, restart count) of each start so far."""
        path = self.directory / (job if "_" in job else f"{job}_")
        return [line.split()[1:] for line in path.read_text().splitlines()] if path.exists() else []

    def running(self, *jobs: str) -> None:
        for job in jobs:
            wait_for(lambda job=job: self.record(job).state == "running" and self.starts(job), f"{job} runs")

    def watch(self, job: str, until: Callable[[JobRecord], bool], seconds: float = 30) -> list[str]:
        """The states that are seen until then, each once in a row."""
        seen: list[str] = []

        def look() -> bool:
            record = self.record(job)
            if seen[-1:] != [record.state]:
                seen.append(record.state)
            return until(record)

        wait_for(look, f"{job}: {seen}", seconds)
        return seen


@pytest.fixture
def work(client: SlurmClient, tmp_path: Path) -> Work:
    return Work(client, tmp_path)


def test_an_array_runs_and_each_task_has_its_own_record(work: Work, cluster: DevCluster) -> None:
    array = work.submit(8, array="0-2")  # long enough to be seen running
    assert array.isdigit()
    work.running(f"{array}_0", f"{array}_2")
    records = {record.id: record for record in work.client.jobs([array])}
    assert set(records) == {f"{array}_{task}" for task in range(3)}
    assert all(record.nodes[0] in cluster.nodes for record in records.values() if record.state == "running")
    work.watch(f"{array}_1", lambda record: record.state == "completed")


def test_a_running_job_tells_when_it_ends(work: Work) -> None:
    began = int(time.time())  # Slurm counts whole seconds
    array = work.submit(60, "--time=10")
    work.running(f"{array}_0", f"{array}_1")
    assert began + 600 <= work.record(f"{array}_0").end <= time.time() + 602
    assert work.record(work.submit(1, "--hold", array=None)).end == 0


def test_jobs_are_found_by_their_name_until_they_end(work: Work) -> None:
    array, other = work.submit(60, name="one"), work.submit(60, name="two")
    here = str(work.directory)
    assert work.client.named("one", here) == {array}
    assert work.client.named("two", here) == {other}
    assert work.client.named("two", str(work.directory.parent)) == set()
    work.client.cancel(other)
    wait_for(lambda: not work.client.named("two", here), "a cancelled job has ended")


def test_nodes_hang_on_their_leaf_switches(work: Work, cluster: DevCluster) -> None:
    first, second, third, fourth = cluster.nodes
    leaves = work.client.topology()
    assert set(leaves) == set(cluster.nodes)
    assert leaves[first] == leaves[second] != leaves[third] == leaves[fourth]


def test_pending_tasks_are_listed_singly(work: Work) -> None:
    array = work.submit(30, "--hold", array="0-3,7")
    records = work.client.jobs([array])
    assert sorted(record.id for record in records) == [f"{array}_{task}" for task in (0, 1, 2, 3, 7)]
    assert {record.state for record in records} == {"pending"}
    assert all(record.reason for record in records)


def test_a_failing_job_is_failed_and_a_job_alone_keeps_its_plain_id(work: Work) -> None:
    job = work.submit(0, array=None, code=3)
    seen = work.watch(job, lambda record: record.state == "failed")
    assert "completed" not in seen
    assert work.record(job).id == job


def test_one_task_is_requeued_and_its_neighbours_are_untouched(work: Work) -> None:
    array = work.submit(60)
    work.running(f"{array}_0", f"{array}_1")
    work.client.requeue(f"{array}_0")
    seen = work.watch(f"{array}_0", lambda record: record.state == "running" and record.restarts == 1)
    assert not {"failed", "completed", "lost"} & set(seen)
    assert "requeued" in seen
    wait_for(lambda: len(work.starts(f"{array}_0")) == 2, "the task has started again")
    assert work.record(f"{array}_1").restarts == 0
    assert len(work.starts(f"{array}_1")) == 1


def test_a_whole_array_cannot_be_requeued_by_accident(work: Work) -> None:
    array = work.submit(60)
    work.running(f"{array}_0", f"{array}_1")
    with pytest.raises(SlurmError, match="name the task"):
        work.client.requeue(array)
    assert [record.state for record in work.client.jobs([array])] == ["running", "running"]


def test_a_task_is_requeued_away_from_a_node(work: Work) -> None:
    array = work.submit(60)
    work.running(f"{array}_0", f"{array}_1")
    node = work.record(f"{array}_0").nodes[0]
    work.client.requeue(f"{array}_0", exclude=node)
    wait_for(lambda: len(work.starts(f"{array}_0")) == 2, "the task has started again")
    assert work.starts(f"{array}_0")[-1] != [node, "1"]
    assert work.starts(f"{array}_0")[-1][1] == "1"
    assert work.record(f"{array}_1").restarts == 0


def test_a_task_is_not_left_held_when_it_cannot_be_kept_off_a_node(work: Work) -> None:
    array = work.submit(60, array="0")
    work.running(f"{array}_0")
    with pytest.raises(SlurmError, match="nonsense"):
        work.client.requeue(f"{array}_0", exclude="nonsense")
    work.watch(f"{array}_0", lambda record: record.state == "running" and record.restarts == 1)


def test_a_requeued_task_can_be_hurried(work: Work) -> None:
    array = work.submit(60, array="0")
    work.running(f"{array}_0")
    work.client.requeue(f"{array}_0")
    wait_for(lambda: work.record(f"{array}_0") and work.client.hurry(f"{array}_0"), "it may be hurried")
    work.watch(f"{array}_0", lambda record: record.state == "running" and record.restarts == 1)
    wait_for(lambda: len(work.starts(f"{array}_0")) == 2, "the task has started again")


def test_exit_code_75_hands_the_task_back(work: Work) -> None:
    array = work.submit(1, array="0", code=75)
    seen = work.watch(f"{array}_0", lambda record: record.state == "completed", 40)
    assert not {"failed", "lost"} & set(seen)
    assert [restart for _, restart in work.starts(f"{array}_0")] == ["0", "1"]
    assert features.has_requeue_exit(75)
    assert not features.has_requeue_exit(74)


def test_a_job_that_may_not_be_requeued_is_told_apart(work: Work) -> None:
    array = work.submit(60, "--no-requeue")
    work.running(f"{array}_0")
    with pytest.raises(RequeueDisabled):
        work.client.requeue(f"{array}_0")
    assert work.record(f"{array}_0").state == "running"


def test_a_preempted_task_comes_back_and_never_looks_failed(work: Work) -> None:
    array = work.submit(60, "--exclusive", array="0-3")
    work.running(*(f"{array}_{task}" for task in range(4)))
    urgent = work.submit(1, "--partition=urgent", "--exclusive", array=None, name="u")
    wait_for(lambda: work.record(urgent).state == "completed", "the urgent job ran")
    (victim,) = (record for record in work.client.jobs([array]) if record.restarts == 1)
    seen = work.watch(victim.id, lambda record: record.state == "running")
    assert not {"failed", "lost", "completed"} & set(seen)


def test_a_task_of_a_crashed_node_is_requeued_under_the_same_id(work: Work, cluster: DevCluster) -> None:
    array = work.submit(60, array="0")
    work.running(f"{array}_0")
    node = work.record(f"{array}_0").nodes[0]
    cluster.crash(node)
    cluster.fail(node)

    # a last answer of the dead node may make Slurm try it once more
    def elsewhere(record: JobRecord) -> bool:
        return record.state == "running" and list(record.nodes) != [node]

    seen = work.watch(f"{array}_0", elsewhere, 80)
    assert not {"failed", "lost"} & set(seen)
    assert work.record(f"{array}_0").restarts >= 1


def test_cancelling_a_task_leaves_the_others_and_cancelling_twice_is_no_error(work: Work) -> None:
    array = work.submit(60)
    work.running(f"{array}_0", f"{array}_1")
    work.client.cancel(f"{array}_0")
    work.watch(f"{array}_0", lambda record: record.state == "failed")
    assert work.record(f"{array}_0").raw.startswith("CANCELLED")
    assert work.record(f"{array}_1").state == "running"
    work.client.cancel(f"{array}_0")
    work.client.cancel(array)
    work.watch(f"{array}_1", lambda record: record.state == "failed")
    work.client.cancel("999999")


def test_a_job_that_slurm_does_not_know_is_lost(work: Work) -> None:
    array = work.submit(60, array="0")
    assert [record.state for record in work.client.jobs(["999998"])] == ["lost"]
    states = {record.id: record.state for record in work.client.jobs([array, "999998", f"{array}_7"])}
    assert states["999998"] == "lost"
    assert states[f"{array}_7"] == "lost"
    assert states[f"{array}_0"] != "lost"


def test_a_refused_submission_says_why(work: Work) -> None:
    with pytest.raises(SlurmError, match=r"(?i)partition"):
        work.submit(1, "--partition=nowhere")


def test_nothing_of_the_submitters_environment_reaches_the_job(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_SECRET", "hunter2-of-the-shell")
    array = work.submit(1, array="0")
    work.watch(f"{array}_0", lambda record: record.state == "completed")
    assert "hunter2" not in (work.directory / f"{array}_0.env").read_text()
