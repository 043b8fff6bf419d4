"""What the environment tells about the job that this process runs in."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from exahpc.slurm.features import has_requeue_exit as has_requeue_exit


def task_id(environ: Mapping[str, str] | None = None) -> str | None:
    """Id of our own job as scontrol and scancel must be given it; None outside Slurm.

    "<array>_<task>" inside an array: SLURM_JOB_ID of one of its tasks is the array's own id, and requeueing that
    would requeue every task. The bare id only of a job that is no array.
    """
    environ = os.environ if environ is None else environ
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    if array and task:
        return f"{array}_{task}"
    if array or task:
        return None  # half an array id: whatever it is, no id that may be acted upon
    return environ.get("SLURM_JOB_ID") or None


def interpreter(environ: Mapping[str, str] | None = None) -> str:
    """What starts Python in a step: what started it in this job. Ours may be a path that only a container has."""
    return (os.environ if environ is None else environ).get("EXAHPC_PYTHON") or sys.executable


def end_time(environ: Mapping[str, str] | None = None) -> float:
    """Unix time at which Slurm ends this job; 0 where it does not say (an older Slurm, no limit)."""
    text = (os.environ if environ is None else environ).get("SLURM_JOB_END_TIME", "")
    return float(text) if text.isdigit() else 0.0


def restarts(environ: Mapping[str, str] | None = None) -> int:
    """Times that Slurm has requeued this job."""
    text = (os.environ if environ is None else environ).get("SLURM_RESTART_COUNT", "")
    return int(text) if text.isdigit() else 0
