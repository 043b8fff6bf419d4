"""Tasks whose time runs out or is taken, on the development cluster: real Slurm, real MPI, the official client.

Three nodes; tasks ask for few CPUs, so a task and its successor may share a node.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from exahpc.slurm.jobbook import JobBook
from tests.cluster import deployed
from tests.cluster.conftest import DevCluster
from tests.cluster.deployed import devcluster
from tests.live import EXAHPC, Live, Load, processes_of, until

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(600)]

TOML = """
name = "{name}"
[model]
path = "{model}"
dtype = "float32"
context = 1024
[slurm]
partition = "{partition}"
time = "{time}"
[[pool]]
name = "a"
replicas = 2
max_sequences = 8
{more}
[head]
entries = 1
slurm.time = "1:00:00"
[recovery]
backoff_seconds = 0.2
beat_seconds = 1.0
[walltime]
drain_seconds = 20
[launcher]
commands = "{commands}"
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[DevCluster]:
    low = "PartitionName=low Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=5 GraceTime=15"
    with devcluster("wt", 3, DEVCLUSTER_EXTRA=low) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    with deployed.home() as made:
        yield made


def jobs(live: Live) -> dict[int, str]:
    """Task -> job of its current agent, where that is alive."""
    found = live.status()
    return {agent.task: agent.job for agent in found.agents if agent.alive} if found else {}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("commands", ["head", "watch"])
def test_every_task_is_succeeded_again_and_again_before_its_time_is_over_and_no_request_fails(
    nodes: DevCluster, home: Path, commands: str
) -> None:
    """commands = "watch": as where nodes may not run sbatch."""
    live = Live(home, f"wall-{commands}", {"SLURM_CONF": nodes.conf})
    watcher: subprocess.Popen[bytes] | None = None
    try:
        model = home / "models" / "tiny"
        text = TOML.format(name=live.name, model=model, partition="main", time="5", more="", commands=commands)
        live.up(text)
        if commands == "watch":
            watcher = subprocess.Popen([*EXAHPC, "watch", live.name], env=live.env, stdin=subprocess.DEVNULL)
        first = jobs(live)
        assert set(first) == {0, 1}
        load = Load(live, streams=3, tokens=200)
        lowest = live.ready()

        def succeeded(before: dict[int, str]) -> bool:
            nonlocal lowest
            found = live.status()
            if found is not None:
                lowest = min(lowest, found.ready)
            now = jobs(live)
            return set(now) == {0, 1} and all(now[task] != before[task] for task in now)

        def hand_over(before: dict[int, str]) -> dict[int, str]:
            until(f"both tasks live in other jobs than {before}", lambda: succeeded(before), 400, every=0.5)
            until("the old jobs are over", lambda: not alive(nodes, list(before.values())), 90, every=0.5)
            assert ended(nodes, before) == {"COMPLETED"}, "nothing ran into its limit, and nothing was requeued"
            return jobs(live)

        hand_over(hand_over(first))
        load.stop()
        assert lowest == 2, "capacity never dipped"
        assert load.texts
        for prompt in {p for p, _ in load.texts}:
            assert {t for p, t in load.texts if p == prompt} == {live.stream(prompt, 200)}
        array, task = jobs(live)[0].split("_")
        assert task == "0"
        assert array in JobBook.load(live.folder.path).pools["a"]
        live.run("down", live.name)
        assert not nodes.run("squeue", "-h", "-o", "%i").strip(), "down leaves no job, successors included"
        until("down leaves no process", lambda: not processes_of(live.folder.path), 20)
    finally:
        if watcher is not None:
            watcher.terminate()
            watcher.wait()
        live.run("down", live.name, "--seconds", "0", check=False)
        nodes.clear()


def test_jobs_that_were_submitted_in_advance_take_over_before_those_before_them_end_and_at_once_when_these_fail(
    nodes: DevCluster, home: Path
) -> None:
    live = Live(home, "wall-chain", {"SLURM_CONF": nodes.conf})
    chain = 'successors = "chain"\nchain = 2\ndrain_seconds'
    try:
        text = TOML.format(
            name=live.name,
            model=home / "models" / "tiny",
            partition="main",
            time="5",
            more="",
            commands="head",
        )
        live.up(text.replace("drain_seconds", chain))
        first, follows = jobs(live), JobBook.load(live.folder.path).chain
        assert set(follows) == {"a/0", "a/1"}
        second, third = ({task: follows[f"a/{task}"][place] for task in first} for place in (0, 1))
        load = Load(live, streams=3, tokens=200)
        lowest = live.ready()

        def succeeded() -> bool:
            nonlocal lowest
            found = live.status()
            if found is not None:
                lowest = min(lowest, found.ready)
            return jobs(live) == second

        until("both tasks live in the jobs that followed", succeeded, 280, every=0.5)
        assert lowest == 2, "capacity never dipped"
        nodes.run("scancel", "--batch", "--signal=KILL", second[1])
        until("the next job has replaced one that failed", lambda: jobs(live).get(1) == third[1], 120, every=0.5)
        until("all are ready", lambda: live.ready() == 2, 90)
        load.stop()
        assert load.texts
        for prompt in {p for p, _ in load.texts}:
            assert {t for p, t in load.texts if p == prompt} == {live.stream(prompt, 200)}
        assert ended(nodes, first) == {"COMPLETED"}, "nothing ran into its limit, and nothing was requeued"
        live.run("down", live.name)
        assert not nodes.run("squeue", "-h", "-o", "%i").strip(), "down leaves no job of the chain"
    finally:
        live.run("down", live.name, "--seconds", "0", check=False)
        nodes.clear()


@pytest.mark.parametrize("partition", ["main", "low"])
def test_a_preempted_task_comes_back_under_its_id_and_no_request_fails(
    nodes: DevCluster, home: Path, partition: str
) -> None:
    """B44. In "low", Slurm gives 15 s of grace."""
    live = Live(home, f"pre-{partition}", {"SLURM_CONF": nodes.conf})
    try:
        model, apart = home / "models" / "tiny", 'slurm.gres = "gpu:tile:7"'
        hour = {"time": "1:00:00", "commands": "head"}
        live.up(TOML.format(name=live.name, model=model, partition=partition, more=apart, **hour))
        first, before = jobs(live), {task: live.incarnation("a", task, task) for task in (0, 1)}
        head = live.folder.head()
        assert head is not None
        task, node = next(
            (task, agent.node) for task in (0, 1) if (agent := live.agent("a", task)) and agent.node != head.host
        )
        load = Load(live, streams=3, tokens=200)
        urgent = ("sbatch", "--parsable", "--partition=urgent", f"--nodelist={node}", "--exclusive")
        job = nodes.run(*urgent, "--output=/dev/null", "--wrap=sleep 10").strip()
        until("the urgent job has run", lambda: not alive(nodes, [job]), 90, every=0.5)
        until("the task is back", lambda: live.incarnation("a", task, task) > before[task], 150, every=0.5)
        until("all are ready", lambda: live.ready() == 2, 60)
        load.stop()
        assert load.texts
        for prompt in {p for p, _ in load.texts}:
            assert {t for p, t in load.texts if p == prompt} == {live.stream(prompt, 200)}
        assert jobs(live) == first, "requeued, not submitted a second time"
        assert len(JobBook.load(live.folder.path).pools["a"]) == 1
    finally:
        live.run("down", live.name, "--seconds", "0", check=False)
        nodes.clear()


def ended(nodes: DevCluster, lives: dict[int, str]) -> set[str]:
    """States of these tasks' jobs."""
    lines = nodes.run("squeue", "-h", "-r", "-t", "all", "-o", "%i %T").splitlines()
    states = dict(line.split() for line in lines)
    return {states[job] for job in lives.values()}


def alive(nodes: DevCluster, ids: list[str]) -> list[str]:
    """Which of these jobs Slurm still runs or holds."""
    known = nodes.run("squeue", "-h", "-r", "-o", "%i").split()
    return [job for job in ids if job in known]
