"""Laws of steps, on real processes that stand in for mpirun and its ranks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from exahpc.agent import processes
from exahpc.agent.ending import Verdict
from exahpc.agent.steps import Step, StepRecord, adoptable, record_path, socket_path
from tests.live import until

RANKS = "sleep 300 & setsid sh -c 'trap \"\" TERM; sleep 300; :' {args} & wait"
"""A starter that dies of TERM and leaves two ranks: one in its session, one deaf one in another."""


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for pid in processes.family(None, str(socket_path(tmp_path, "a", 0, 1))):
        os.kill(pid, signal.SIGKILL)


def names(runtime: Path, slot: int = 0, incarnation: int = 1) -> tuple[str, ...]:
    """What a rank's command line ends in."""
    socket = str(socket_path(runtime, "a", slot, incarnation))
    return ("exahpc.replica", "--folder", str(runtime), "--pool", "a", "--slot", str(slot), "--socket", socket)


def start(runtime: Path, script: str, *, slot: int = 0, incarnation: int = 1, deployment: str = "d") -> Step:
    arguments = names(runtime, slot, incarnation)
    return Step.start(
        ("sh", "-c", script.replace("{args}", " ".join(arguments)), *arguments),
        os.environ,
        pool="a",
        slot=slot,
        incarnation=incarnation,
        socket=socket_path(runtime, "a", slot, incarnation),
        log_file=runtime / "log",
        deployment=deployment,
        scratch=runtime / f"a.{slot}.{incarnation}.tmp",
    )


def adopt(runtime: Path, deployment: str = "d") -> list[Step]:
    return adoptable(runtime, "a", [0], deployment, runtime)


def family(step: Step) -> list[int]:
    return processes.family(step.record.pid, step.record.socket)


async def ended(step: Step, *, kill: bool = False, seconds: float = 15.0) -> Verdict:
    done: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()

    def over(verdict: Verdict) -> None:
        assert family(step) == [], "reported while some process still lives"
        done.set_result(verdict)

    step.watch(over)
    if kill:
        step.kill()
    return await asyncio.wait_for(done, seconds)


def test_an_end_is_reported_with_its_story_and_leaves_nothing(runtime: Path) -> None:
    step = start(
        runtime, "echo 'Traceback (most recent call last):'; echo 'ValueError: no'; touch $TMPDIR/x; exit 3"
    )
    Path(step.record.socket).touch()
    assert asyncio.run(ended(step)) == Verdict("ValueError: no (exit code 3)", own_exit=True)
    assert [path.name for path in runtime.iterdir()] == ["log"]
    assert (runtime / "log").stat().st_mode & 0o777 == 0o600


def test_a_kill_ends_every_rank_even_deaf_ones_in_other_sessions(runtime: Path) -> None:
    step = start(runtime, RANKS)
    until("the ranks", lambda: len(family(step)) >= 4, 10)
    verdict = asyncio.run(ended(step, kill=True))
    assert not verdict.own_exit


def test_ranks_do_not_outlive_a_starter_that_was_killed(runtime: Path) -> None:
    step = start(runtime, RANKS)
    until("the ranks", lambda: len(family(step)) >= 4, 10)
    os.kill(step.record.pid, signal.SIGKILL)
    assert asyncio.run(ended(step)) == Verdict("signal SIGKILL", own_exit=False)


def test_a_later_agent_finds_the_step_and_sees_its_end(runtime: Path) -> None:
    first = start(runtime, "sleep 300 & wait")
    (step,) = adopt(runtime)
    assert step.record == first.record
    os.kill(first.record.pid, signal.SIGKILL)
    first._child.wait()  # type: ignore[union-attr]  # the dead agent's part, done by init otherwise
    assert not asyncio.run(ended(step)).own_exit
    assert not record_path(runtime, "a", 0).exists()


def test_what_was_noted_when_ready_reaches_the_next_agent(runtime: Path) -> None:
    first = start(runtime, "sleep 300 & wait")
    first.mark_ready()
    (step,) = adopt(runtime)
    assert step.record.ready
    asyncio.run(ended(first, kill=True))


def test_a_process_id_that_was_used_again_is_neither_adopted_nor_killed(runtime: Path) -> None:
    innocent = subprocess.Popen(["sleep", "300"], start_new_session=True)
    try:
        socket = socket_path(runtime, "a", 0, 1)
        record = StepRecord("a", 0, 1, innocent.pid, 12345, str(socket), "/dev/null", "d")
        record_path(runtime, "a", 0).write_bytes(msgspec.json.encode(record))
        assert adopt(runtime) == []
        assert innocent.poll() is None
        assert not record_path(runtime, "a", 0).exists()
    finally:
        innocent.kill()
        innocent.wait()


def test_a_step_of_another_deployment_file_is_ended(runtime: Path) -> None:
    step = start(runtime, RANKS, deployment="old")
    until("the ranks", lambda: len(family(step)) >= 4, 10)
    assert adopt(runtime, "new") == []
    step._child.wait()  # type: ignore[union-attr]
    until("the ranks are gone", lambda: not family(step), 5)


def test_a_step_that_nobody_recorded_is_ended(runtime: Path) -> None:
    arguments = names(runtime)
    stray = subprocess.Popen(["sh", "-c", "sleep 300; :", *arguments], start_new_session=True)
    other = subprocess.Popen(["sh", "-c", "sleep 300; :", *names(runtime, slot=1)], start_new_session=True)
    try:
        until("the stray", lambda: stray.pid in processes.family(None, arguments[-1]), 5)
        assert adopt(runtime) == []
        assert stray.wait(10) != 0
        assert other.poll() is None, "slots of other agents are not ours"
    finally:
        for child in (stray, other):
            with contextlib.suppress(ProcessLookupError):  # the stray's whole group is gone already
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def test_a_step_of_another_job_of_this_node_is_left_alone(runtime: Path) -> None:
    """A task and its successor may share a node: same folder, pool and slot, another runtime directory."""
    arguments = (*names(runtime)[:-1], str(socket_path(runtime / "other", "a", 0, 1)))
    beside = subprocess.Popen(["sh", "-c", "sleep 300; :", *arguments], start_new_session=True)
    try:
        until("the step", lambda: beside.pid in processes.family(None, arguments[-1]), 5)
        assert adopt(runtime) == []
        assert beside.poll() is None
    finally:
        os.killpg(beside.pid, signal.SIGKILL)
        beside.wait()


def test_files_of_dead_steps_are_removed_and_those_of_other_slots_kept(runtime: Path) -> None:
    for name in ("a.0.1.sock", "a.0.2.sock", "a.1.1.sock", "a.1.json", "entry.alive"):
        (runtime / name).touch()
    (runtime / "a.0.1.tmp").mkdir()
    adopt(runtime)
    assert sorted(path.name for path in runtime.iterdir()) == ["a.1.1.sock", "a.1.json", "entry.alive"]


def test_a_step_that_cannot_be_recorded_does_not_live(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("exahpc.agent.steps.write_atomic", full)
    with pytest.raises(OSError, match="No space"):
        start(runtime, RANKS)
    assert processes.family(None, str(socket_path(runtime, "a", 0, 1))) == []


def test_shared_memory_of_a_killed_step_is_removed(runtime: Path) -> None:
    segment = Path(f"/dev/shm/exahpc-test-{os.getpid()}-{time.monotonic_ns()}")
    script = (
        "import mmap, sys, time; f = open(sys.argv[1], 'w+b'); f.truncate(4096); m = mmap.mmap(f.fileno(), 4096);"
        "m[0] = 1; open(sys.argv[2], 'w').close(); time.sleep(300)"
    )
    step = start(runtime, f'exec python3 -c "{script}" {segment} {runtime}/mapped {{args}}')
    until("the mapping", (runtime / "mapped").exists, 10)
    step.mark_ready()
    assert step.record.shm == (str(segment),)
    os.kill(step.record.pid, signal.SIGKILL)
    asyncio.run(ended(step))
    assert not segment.exists()


def test_a_zombie_is_not_alive() -> None:
    child = subprocess.Popen(["true"])
    until("its end", lambda: processes.started(child.pid) is None, 5)
    child.wait()


def test_slurm_steps_are_read_from_the_ranks_own_environment() -> None:
    env = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "12", "SLURM_STEP_ID": "3", "SLURM_PROCID": "0"}
    rank = subprocess.Popen(["sleep", "300"], env=env)
    batch = subprocess.Popen(["sleep", "300"], env={**env, "SLURM_STEP_ID": "4294967291x"})
    try:
        assert processes.slurm_steps([rank.pid, batch.pid]) == {"12.3"}
    finally:
        for child in (rank, batch):
            child.kill()
            child.wait()
