"""Slurm through pyslurm, for sites whose Slurm it fits: one RPC where the command line starts a process.

What pyslurm cannot do right goes to the command line:

- it addresses jobs by number only. One task of every array carries the array's own number, and an action on that
  number hits the whole array; pending tasks have no number at all;
- `switches=` raises NameError, `time_limit=` TypeError, and flags it has no attribute for would be dropped;
- it copies every SLURM_* variable of this process into the job's environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from exahpc.errors import SlurmError
from exahpc.slurm.api import RequeueDisabled, Submission
from exahpc.slurm.cli import CommandLine
from exahpc.slurm.hostlist import expand
from exahpc.slurm.process import Answer
from exahpc.slurm.squeue import Row

T = TypeVar("T")

_ATTRIBUTES = {
    "--partition": "partitions",
    "--account": "account",
    "--qos": "qos",
    "--reservation": "reservations",
    "--constraint": "constraints",
    "--gres": "gres_per_node",
    "--nodes": "nodes",
    "--ntasks-per-node": "ntasks_per_node",
    "--cpus-per-task": "cpus_per_task",
    "--mem": "memory_per_node",
    "--signal": "signal",
    "--open-mode": "log_files_open_mode",
    "--chdir": "working_directory",
    "--output": "standard_output",
    "--dependency": "dependencies",
    "--exclude": "excluded_nodes",
}
_EXPORT = "--export=NIL"
_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "SLURM_EXPORT_ENV": "NIL"}


class PySlurm(CommandLine):
    """A SlurmClient: pyslurm for queries, submission, requeue and cancellation where it is right, and the command
    line beneath."""

    name = "pyslurm"

    def __init__(self, poll: float = 0.3) -> None:
        super().__init__(poll)
        import pyslurm  # only here, after choose.probe: importing a misfit ends the interpreter

        self._pyslurm: Any = pyslurm

    # --- query -----------------------------------------------------------------------------------------------

    def _rows(self, ids: Sequence[str]) -> list[Row]:
        wanted = set(ids)
        return [
            row
            for job in self._load()
            for row in rows_of(job)
            if row.id in wanted or row.id.partition("_")[0] in wanted
        ]

    def _load(self) -> list[Any]:
        def load() -> list[Any]:
            return list(self._pyslurm.Jobs.load().values())

        return self._rpc(load, "jobs cannot be queried (which says nothing about the jobs)")

    def _rpc(self, call: Callable[[], T], what: str) -> T:
        try:
            return call()
        except self._pyslurm.RPCError as error:
            if "disabled" in str(error).lower():
                raise RequeueDisabled(f"{what}: Slurm says: {error}: set requeue = false for the pool") from error
            raise SlurmError(f"{what}: Slurm says: {error}") from error

    def _own_number(self, job: str) -> int | None:
        """The number that means this job or task and nothing else; None where there is none."""
        for found in self._load():
            rows = rows_of(found)
            if len(rows) == 1 and rows[0].id == job and not found.array_tasks_waiting:
                number = int(found.id)
                return None if "_" in job and number == int(found.array_id) else number
        return None

    # --- act -------------------------------------------------------------------------------------------------

    def _sbatch(self, submission: Submission) -> Answer:
        values = description(submission)
        if values is None or any(name.startswith("SLURM_") and name != "SLURM_CONF" for name in os.environ):
            return super()._sbatch(submission)
        before = os.umask(0o077)  # becomes the job's
        try:
            job = self._pyslurm.JobSubmitDescription(**values).submit()
        except self._pyslurm.RPCError as error:
            return Answer(("Slurm",), 1, "", str(error))
        finally:
            os.umask(before)
        return Answer(("Slurm",), 0, str(job), "")

    def _requeue(self, verb: str, job: str) -> bool:
        number = self._own_number(job)
        rows = [] if number is None else self._rows((job,))
        if number is None or not rows or rows[0].raw != "RUNNING":  # the command line tells the rest apart
            return super()._requeue(verb, job)
        hold = verb == "requeuehold"
        self._rpc(lambda: self._pyslurm.Job(number).requeue(hold=hold), f"{job} was not requeued")
        return True

    def cancel(self, job: str, *, signal: str | None = None) -> None:
        number = self._own_number(job)
        if number is None:
            super().cancel(job, signal=signal)
        elif signal is None:
            self._rpc(self._pyslurm.Job(number).cancel, f"{job} was not cancelled")
        else:
            name = f"SIG{signal.removeprefix('SIG')}"
            send = self._pyslurm.Job(number).send_signal
            self._rpc(lambda: send(name, steps="batch"), f"{job} was not signalled")


def rows_of(job: Any) -> list[Row]:
    """One pyslurm.Job: a job, a task, or all pending tasks of an array."""
    raw = str(job.state)
    count = int(job.requeue_count or 0)
    nodes = str(job.allocated_nodes or "")
    reason = str(job.state_reason or "")
    requeueable = bool(job.is_requeueable)
    end = int(job.end_time or 0)
    array, waiting = job.array_id, job.array_tasks_waiting
    if not array:
        names = [str(job.id)]
    elif waiting:
        names = list(expand(f"{array}_[{str(waiting).partition('%')[0]}]"))
    else:  # pyslurm says None for task 0
        names = [f"{array}_{job.array_task_id or 0}"]
    return [Row(name, raw, count, requeueable, nodes, reason, end) for name in names]


def description(submission: Submission) -> dict[str, Any] | None:
    """Attributes of a JobSubmitDescription; None when a flag has none that works."""
    values: dict[str, Any] = {
        "name": submission.name,
        "script": submission.script,
        "script_args": " ".join(submission.arguments),
        "environment": _ENVIRONMENT,
    }
    if any(set(word) & set(" \t\n'\"\\") for word in submission.arguments) or _EXPORT not in submission.flags:
        return None
    if submission.array is not None:
        values["array"] = submission.array
    for flag in submission.flags:
        name, _, value = flag.partition("=")
        if name in ("--requeue", "--no-requeue"):
            values["is_requeueable"] = name == "--requeue"
        elif name == "--exclusive" and not value:
            values["resource_sharing"] = "no"
        elif name == "--kill-on-invalid-dep":
            values["kill_on_invalid_dependency"] = value == "yes"
        elif name in _ATTRIBUTES:
            values[_ATTRIBUTES[name]] = value
        elif flag != _EXPORT:
            return None
    if not {"nodes", "ntasks_per_node", "standard_output"} <= values.keys():
        return None
    values["ntasks"] = int(values["nodes"]) * int(values["ntasks_per_node"])
    if "signal" in values:  # "B:USR1@120": pyslurm wants the full name
        values["signal"] = values["signal"].replace(":USR", ":SIGUSR")
    return values
