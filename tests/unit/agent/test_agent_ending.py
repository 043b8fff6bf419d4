"""Laws of verdicts: who died by itself, and what a user is told."""

from __future__ import annotations

import pytest

from exahpc.agent.ending import judge

TRACEBACK = """Traceback (most recent call last):
  File "rank.py", line 3, in serve
    raise ValueError("weights do not fit: 3 != 4")
ValueError: weights do not fit: 3 != 4
"""
ABORTED = "MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD\nwith errorcode 1.\n"


def noticed(number: int, name: str) -> str:
    return f"mpirun noticed that process rank 1 with PID 0 on node n1 exited on signal {number} ({name}).\n"


@pytest.mark.parametrize(
    ("code", "log", "own", "story"),
    [
        (1, TRACEBACK + ABORTED, True, "ValueError: weights do not fit: 3 != 4 (exit code 1)"),
        (1, "some word\n", True, "exit code 1"),
        (0, "", False, "exit code 0"),
        (-9, "", False, "signal SIGKILL"),
        (-15, "", False, "signal SIGTERM"),
        (-11, "", True, "signal SIGSEGV"),
        (137, noticed(9, "Killed"), False, "exited on signal 9"),
        (143, noticed(15, "Terminated"), False, "exited on signal 15"),
        (139, noticed(11, "Segmentation fault"), True, "exited on signal 11"),
        (134, noticed(6, "Aborted"), True, "exited on signal 6"),
        (135, noticed(7, "Bus error"), True, "exited on signal 7"),
        (139, TRACEBACK + noticed(11, "Segmentation fault"), True, "ValueError: weights do not fit"),
        (137, TRACEBACK + noticed(9, "Killed"), False, "exited on signal 9"),
        (137, TRACEBACK, False, "signal SIGKILL"),
        (None, "", False, "no agent was its parent"),
        (None, TRACEBACK, True, "ValueError"),
        (None, noticed(9, "Killed"), False, "signal 9"),
    ],
)
def test_verdict(code: int | None, log: str, own: bool, story: str) -> None:
    verdict = judge(code, log)
    assert verdict.own_exit is own
    assert story in verdict.story
    assert "\n" not in verdict.story


FIRST = "srun: error: n1: task 0: Exited with exit code 1\n"
KILLED = "srun: error: n2: tasks 1-3: Killed\n"


@pytest.mark.parametrize(
    ("log", "own"),
    [
        (FIRST + KILLED, True),  # the others are killed because of the first
        (KILLED + FIRST, False),
        ("srun: error: n1: task 0: Segmentation fault (core dumped)\n" + KILLED, True),
        ("srun: error: n1: task 0: Exited with exit code 137\n", False),
        ("srun: error: Node failure on n2\n" + FIRST, False),
        ("slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-11-29T10:00:00 DUE TO PREEMPTION ***\n", False),
        ("srun: error: n1: task 1: Terminated\n", False),
    ],
)
def test_under_srun_the_first_rank_that_ended_decides(log: str, own: bool) -> None:
    assert judge(1, log).own_exit is own


def test_a_story_is_short_and_names_the_last_exception() -> None:
    long = "Traceback (most recent call last):\n  File\nOSError: " + "x" * 5000 + "\n"
    assert len(judge(1, long).story) <= 300
    assert judge(1, TRACEBACK + long.replace("x" * 5000, "no disk")).story.startswith("OSError: no disk")


def test_a_module_path_before_the_exception_is_kept() -> None:
    log = "Traceback (most recent call last):\n  File\nexahpc.errors.DeploymentError: pool[0] has no devices\n"
    assert judge(2, log).story == "exahpc.errors.DeploymentError: pool[0] has no devices (exit code 2)"
