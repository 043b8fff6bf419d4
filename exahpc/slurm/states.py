"""Slurm's words for a job's state, in ours. Pure."""

from __future__ import annotations

from exahpc.slurm.api import JobState

_STATES: dict[str, JobState] = {
    "PENDING": "pending",
    "CONFIGURING": "pending",
    "RUNNING": "running",
    "SIGNALING": "running",
    "STAGE_OUT": "running",
    "RESIZING": "running",
    "POWER_UP_NODE": "pending",
    "COMPLETING": "completing",
    "SUSPENDED": "suspended",
    "STOPPED": "suspended",
    "REQUEUED": "requeued",
    "REQUEUE_FED": "requeued",
    "REQUEUE_HOLD": "requeued",
    "RESV_DEL_HOLD": "pending",
    "SPECIAL_EXIT": "requeued",
    "COMPLETED": "completed",
    "BOOT_FAIL": "failed",
    "CANCELLED": "failed",
    "DEADLINE": "failed",
    "FAILED": "failed",
    "LAUNCH_FAILED": "failed",
    "OUT_OF_MEMORY": "failed",
    "RECONFIG_FAIL": "failed",
    "REVOKED": "failed",
    "TIMEOUT": "failed",
}

RETURNING = ("PREEMPTED", "NODE_FAIL")
"""Endings after which Slurm runs a requeueable job again under the same id."""


def state_of(raw: str, *, restarts: int, requeueable: bool) -> JobState:
    """raw: as squeue writes it ("CANCELLED by 0" included).

    A state that is not known (of a newer Slurm) counts as pending: never as an end that somebody acts upon.
    """
    word = raw.split()[0].rstrip("+") if raw.strip() else ""
    if word in RETURNING:
        return "requeued" if requeueable else "failed"
    state = _STATES.get(word, "pending")
    return "requeued" if state == "pending" and restarts > 0 else state
