"""The pyslurm client's view of pyslurm's objects; the client itself is tested on a live cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from exahpc.errors import SlurmError
from exahpc.slurm.api import Submission, Unanswered
from exahpc.slurm.pyslurm_client import PySlurm, description, rows_of

from .fake_slurm import FakeSlurm


def job(**values: Any) -> SimpleNamespace:
    known = {
        "id": 7,
        "array_id": None,
        "array_task_id": None,
        "array_tasks_waiting": None,
        "state": "RUNNING",
        "state_reason": "None",
        "requeue_count": 0,
        "is_requeueable": True,
        "allocated_nodes": "n[1-2]",
        "end_time": 90,
    }
    return SimpleNamespace(**{**known, **values})


def test_a_job_alone_has_its_plain_id() -> None:
    (row,) = rows_of(job(requeue_count=2))
    assert (row.id, row.record().nodes, row.record().restarts, row.record().end) == ("7", ("n1", "n2"), 2, 90.0)


def test_task_zero_is_told_although_pyslurm_says_none() -> None:
    assert [row.id for row in rows_of(job(array_id=7, array_task_id=None))] == ["7_0"]
    assert [row.id for row in rows_of(job(id=9, array_id=7, array_task_id=3))] == ["7_3"]


def test_pending_tasks_of_one_record_become_single_rows() -> None:
    pending = job(array_id=7, array_tasks_waiting="0,2-3%1", state="PENDING", allocated_nodes=None)
    assert [row.id for row in rows_of(pending)] == ["7_0", "7_2", "7_3"]


SUBMISSION = Submission(
    name="x",
    script="/s",
    arguments=("--folder", "/f"),
    flags=(
        "--partition=main",
        "--exclusive",
        "--nodes=2",
        "--ntasks-per-node=3",
        "--no-requeue",
        "--signal=B:USR1@120",
        "--export=NIL",
        "--output=/f/%x",
    ),
    array="0-1",
)


def test_a_submission_becomes_a_description_with_every_flag() -> None:
    assert description(SUBMISSION) == {
        "name": "x",
        "script": "/s",
        "script_args": "--folder /f",
        "environment": {"PATH": "/usr/local/bin:/usr/bin:/bin", "SLURM_EXPORT_ENV": "NIL"},
        "array": "0-1",
        "partitions": "main",
        "resource_sharing": "no",
        "nodes": "2",
        "ntasks_per_node": "3",
        "ntasks": 6,
        "is_requeueable": False,
        "signal": "B:SIGUSR1@120",
        "standard_output": "/f/%x",
    }


def test_what_pyslurm_cannot_express_is_left_to_the_command_line() -> None:
    for flag in ("--switches=1@30", "--licenses=x"):
        changed = msgspec.structs.replace(SUBMISSION, flags=(*SUBMISSION.flags, flag))
        assert description(changed) is None
    assert description(msgspec.structs.replace(SUBMISSION, arguments=("--folder", "/a b"))) is None


@pytest.mark.parametrize(
    ("words", "found", "told"),
    [
        ("", "40\n", "55"),
        ("Socket timed out on send/recv operation", "40\n41\n", "41"),
        ("Socket timed out on send/recv operation", "40\n", Unanswered("x may have been submitted")),
        ("Invalid partition name specified", "40\n", SlurmError("x was not submitted: Slurm says: Invalid part")),
    ],
)
def test_a_submission_whose_confirmation_was_lost_is_looked_for_as_that_of_sbatch(
    slurm: FakeSlurm,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    found: str,
    told: str | SlurmError,
) -> None:
    class RPCError(Exception):
        pass

    def submit() -> int:
        if words:
            raise RPCError(words)
        return 55

    made = SimpleNamespace(RPCError=RPCError, JobSubmitDescription=lambda **_: SimpleNamespace(submit=submit))
    monkeypatch.setitem(sys.modules, "pyslurm", made)
    slurm.says("squeue", "--name=x", "40\n")
    slurm.says("squeue", "--name=x", found)
    flags = (*SUBMISSION.flags[:-1], f"--output={tmp_path}/%x")
    submission = msgspec.structs.replace(SUBMISSION, flags=flags)
    if isinstance(told, str):
        assert PySlurm().submit(submission) == told
    else:
        with pytest.raises(type(told), match=str(told)):
            PySlurm().submit(submission)
    assert slurm.calls("sbatch") == []
