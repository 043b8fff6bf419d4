"""Slurm through its command line: the tested core, right for every site.

Text output in formats that have not changed in ten years; JSON differs between versions. What a query cannot
find out it does not guess: a failed query raises, it never reports a failed job.
"""

from __future__ import annotations

import getpass
import logging
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from exahpc.errors import SlurmError
from exahpc.slurm import squeue, topology
from exahpc.slurm.api import JobRecord, RequeueDisabled, Submission, Unanswered
from exahpc.slurm.process import Answer, ask, call
from exahpc.slurm.squeue import Row
from exahpc.slurm.states import RETURNING

log = logging.getLogger(__name__)

RETURN_SECONDS = 180.0
"""A requeueable job that stays PREEMPTED or NODE_FAIL for longer is not coming back."""
RELAUNCH_SECONDS = 1.1
"""A job started again on the same node within the second of its kill ends FAILED without running its script."""
HOLD_SECONDS = 60.0
"""Longest wait for a job to be off its nodes after requeuehold."""


class CommandLine:
    """A SlurmClient made of sbatch, squeue, scontrol and scancel."""

    name = "command line"

    def __init__(self, poll: float = 0.3) -> None:
        """poll: seconds between two looks while a held job leaves its nodes."""
        self._poll = poll
        self._returning: dict[str, float] = {}  # id -> since when it is on its way back
        self._waiting: dict[str, float] = {}  # id -> since when it waits after a requeue
        self._submitting = threading.Lock()
        self._flags = 0  # the first squeue call in squeue.CALLS that this site understands

    # --- submit ----------------------------------------------------------------------------------------------

    def submit(self, submission: Submission) -> str:
        """Submit exactly once: when the controller's answer is lost, look for the job before trying again."""
        for flag in submission.flags:
            if flag.startswith("--output=/"):
                Path(flag.partition("=")[2]).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._submitting:  # so that what shows up under this name meanwhile is this one
            answer = self._submit(submission)
        if isinstance(answer, str):
            return answer
        if not answer.ok and answer.says("requeue") and "--requeue" in submission.flags:
            log.warning("this site refuses --requeue (%s): submitting without it", answer.error.strip())
            kept = tuple(flag for flag in submission.flags if flag != "--requeue")
            return self.submit(msgspec.structs.replace(submission, flags=kept))
        if not answer.ok:
            raise answer.failure(f"{submission.name} was not submitted")
        job = answer.out.strip().partition(";")[0]
        if not job.isdigit():
            raise SlurmError(f"{submission.name}: sbatch answered {answer.out!r} instead of a job id")
        return job

    def _submit(self, submission: Submission) -> Answer | str:
        """sbatch's answer, or the job where the answer got lost and the job did not.

        Raises Unanswered where a job may yet come: a controller that hangs may get to it much later.
        """
        before = self.named(submission.name, submission.folder)
        for again in (True, False):
            try:
                answer = self._sbatch(submission)
                if not answer.passing:
                    return answer
                lost = Unanswered(str(answer.failure(f"{submission.name} may have been submitted")))
            except Unanswered as error:
                lost, again = error, False
            log.warning("%s; looking whether it was taken", lost)
            time.sleep(2.0)
            if job := self._taken(submission, before, lost):
                return job
            if not again:
                raise lost
        raise AssertionError("the second try returns or raises")

    def _sbatch(self, submission: Submission) -> Answer:
        return call(submission.argv())

    def _taken(self, submission: Submission, before: set[str], lost: Unanswered) -> str:
        """The job like this one that is new, "" when there is none.

        Raises Unanswered when there are several: the controller may have got to an earlier one only now.
        """
        try:
            taken = self.named(submission.name, submission.folder) - before
        except SlurmError:
            raise lost from None
        if len(taken) > 1:
            raise Unanswered(
                f"somebody else submits {submission.name} at the same time ({', '.join(sorted(taken))}): "
                f"cancel what is not wanted and try again"
            )
        return taken.pop() if taken else ""

    def named(self, name: str, folder: str) -> set[str]:
        answer = ask(("squeue", "--noheader", f"--user={_user()}", f"--name={name}", "--format=%F %Z"))
        if not answer.ok:
            raise answer.failure(f"cannot look for jobs named {name}")
        lines = (line.partition(" ") for line in answer.out.splitlines())
        return {job for job, _, where in lines if where.strip() == folder}

    # --- query -----------------------------------------------------------------------------------------------

    def jobs(self, ids: Sequence[str]) -> list[JobRecord]:
        if not ids:
            return []
        rows = self._rows(ids)
        records = [self._record(row) for row in rows]
        known = {record.id for record in records} | {record.array for record in records}
        return records + [JobRecord(job, "lost", "unknown to Slurm") for job in ids if job not in known]

    def _rows(self, ids: Sequence[str]) -> list[Row]:
        while True:
            version = squeue.CALLS[self._flags]
            answer = ask(version.argv(ids))
            if answer.ok:
                return version.parse(answer.out)
            if answer.says("invalid job id"):  # squeue's way to say that none of them is known
                return []
            if answer.says("unrecognized option", "invalid option", "invalid job format", "invalid field") and (
                self._flags + 1 < len(squeue.CALLS)
            ):
                log.info("this squeue does not know %s: %s", version.wants, answer.error.strip())
                self._flags += 1
                continue
            raise answer.failure("jobs cannot be queried (which says nothing about the jobs)")

    def _record(self, row: Row) -> JobRecord:
        record = row.record()
        if row.raw == "PENDING" and record.restarts:
            self._waiting.setdefault(row.id, time.monotonic())
        else:
            self._waiting.pop(row.id, None)
        if row.raw not in RETURNING or record.state != "requeued":
            self._returning.pop(row.id, None)
            return record
        since = self._returning.setdefault(row.id, time.monotonic())
        if time.monotonic() - since < RETURN_SECONDS:
            return record
        return msgspec.structs.replace(record, state="failed")

    # --- requeue ---------------------------------------------------------------------------------------------

    def requeue(self, job: str, *, exclude: str | None = None) -> None:
        """exclude: node names, comma-separated. A job that waits in the queue already is only kept off them.

        Raises RequeueDisabled when this job may not be requeued.
        """
        self._only_one(job)
        if exclude is None:
            self._requeue("requeue", job)
            return
        if self._requeue("requeuehold", job):
            try:
                self._settle(job)
                self._exclude(job, exclude, "StartTime=now")
            finally:
                self._control(f"{job} stays held (release it: scontrol release {job})", "release", job)
        else:
            self._exclude(job, exclude)

    def _only_one(self, job: str) -> None:
        """A bare id that is an array's would requeue every task of it."""
        if "_" not in job and any("_" in row.id for row in self._rows((job,))):
            raise SlurmError(f"{job} is a whole job array: name the task to requeue, {job}_N")

    def _requeue(self, verb: str, job: str) -> bool:
        """False when the job was waiting in the queue anyway."""
        for _ in range(20):
            answer = ask(("scontrol", verb, job))
            if answer.ok:
                return True
            if answer.says("job is pending execution"):
                return False
            if answer.says("disabled"):
                raise RequeueDisabled(
                    f"{job} cannot be requeued here (scontrol says: {' '.join(answer.error.split())}): "
                    f"set requeue = false for the pool, and lost tasks are submitted anew"
                )
            if not answer.says("already completing"):
                raise answer.failure(f"{job} was not requeued")
            time.sleep(self._poll)
        raise answer.failure(f"{job} was not requeued")

    def _settle(self, job: str) -> None:
        """Wait until the held job has left its nodes, and a moment more."""
        until = time.monotonic() + HOLD_SECONDS
        while True:
            found = self._rows((job,))
            if not found or found[0].raw not in ("RUNNING", "COMPLETING", "SUSPENDED"):
                break
            if time.monotonic() > until:
                raise SlurmError(f"{job} is still {found[0].raw} {HOLD_SECONDS:.0f} s after requeuehold")
            time.sleep(self._poll)
        time.sleep(RELAUNCH_SECONDS)

    def _exclude(self, job: str, nodes: str, *more: str) -> None:
        before = (
            ask(("scontrol", "--oneliner", "show", "job", job)).out.partition(" ExcNodeList=")[2].split(" ")[0]
        )
        earlier = [] if before in ("", "(null)") else [before]
        self._control(
            f"{job} cannot be kept off {nodes}",
            *("update", f"JobId={job}", f"ExcNodeList={','.join([*earlier, nodes])}", *more),
        )

    def _control(self, what: str, *arguments: str) -> Answer:
        answer = ask(("scontrol", *arguments))
        if not answer.ok:
            raise answer.failure(what)
        return answer

    def hurry(self, job: str) -> bool:
        """Start a requeued job as soon as nodes are free. Slurm itself waits for its credentials to expire
        (AuthInfo cred_expire, two minutes by default; reason BeginTime).

        False when it is too early: `jobs` has not yet seen it wait for long enough to be off its old node.
        """
        since = self._waiting.get(job)
        if since is None or time.monotonic() - since < RELAUNCH_SECONDS:
            return False
        self._control(f"{job} cannot be started earlier", "update", f"JobId={job}", "StartTime=now")
        return True

    # --- cancel ----------------------------------------------------------------------------------------------

    def cancel(self, job: str, *, signal: str | None = None) -> None:
        """signal: sent to the batch script only (it passes signals on), for instance "USR1"."""
        answer = ask(("scancel", *(("--batch", f"--signal={signal}") if signal else ()), job))
        if not answer.ok and not answer.says("invalid job id", "already completing or completed"):
            raise answer.failure(f"{job} was not cancelled")

    # --- site ------------------------------------------------------------------------------------------------

    def topology(self) -> dict[str, str]:
        answer = ask(("scontrol", "--oneliner", "show", "topology"))
        if answer.ok:
            return topology.leaves(answer.out)
        if answer.says("no topology", "not supported", "invalid"):
            return {}
        raise answer.failure("the topology is not to be had")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
