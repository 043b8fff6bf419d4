"""What the rest of the product asks of Slurm: a few verbs behind one small interface, held by one contract test.

`cli.CommandLine` is the tested core and works on every site; `pyslurm_client.PySlurm` is the adapter for sites
whose Slurm matches the installed pyslurm; `choose()` picks one and says which and why. `remote.Remote` has both
work done elsewhere, by `exahpc watch` on a login node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from exahpc.errors import SlurmError

JobState = Literal["pending", "running", "completing", "requeued", "suspended", "completed", "failed", "lost"]
"""`failed` covers every ending that Slurm will not run again; `lost` means Slurm does not know the job (any more);
`requeued` is PENDING after a requeue, PREEMPTED or NODE_FAIL on its way back."""


ENDED: tuple[JobState, ...] = ("completed", "failed", "lost")
"""What will not run again by itself."""


class JobRecord(msgspec.Struct, frozen=True):
    """One job or array task. id: "1234" or "1234_5", always usable in scontrol and scancel.

    raw: Slurm's own words for the state; reason: why it waits; nodes: host names; restarts: times requeued; end:
    Unix time at which Slurm ends a running job, 0 when it has no limit or is not running.
    """

    id: str
    state: JobState
    raw: str
    reason: str = ""
    nodes: tuple[str, ...] = ()
    restarts: int = 0
    end: float = 0.0

    @property
    def array(self) -> str:
        """Id of the whole array (or of the job itself)."""
        return self.id.partition("_")[0]

    @property
    def task(self) -> int | None:
        """Array index, or None for a job that is no array task."""
        _, found, index = self.id.partition("_")
        return int(index) if found else None


class Submission(msgspec.Struct, frozen=True):
    """One sbatch call. flags in a fixed order; script: path of a static script; arguments: passed to it.

    array: "0-7" or None. The environment of the submitter is not exported (`--export=NIL` or the closest the site
    allows), so no secret of a shell ends in a job record.
    """

    name: str
    script: str
    arguments: tuple[str, ...]
    flags: tuple[str, ...]
    array: str | None = None

    @property
    def folder(self) -> str:
        """The directory that it is told to run in."""
        return next((flag[len("--chdir=") :] for flag in self.flags if flag.startswith("--chdir=")), "")

    def argv(self) -> tuple[str, ...]:
        """The exact command line."""
        array = (f"--array={self.array}",) if self.array is not None else ()
        return (
            "sbatch",
            "--parsable",
            f"--job-name={self.name}",
            *array,
            *self.flags,
            self.script,
            *self.arguments,
        )


class Unanswered(SlurmError):
    """Slurm was told to do something, and nobody knows whether it does."""


class RequeueDisabled(SlurmError):
    """This job, or every job of the site, may not be requeued: submit anew instead."""


class SlurmClient(Protocol):
    """Raises SlurmError when Slurm refuses or cannot be asked; a failed query never means a failed job."""

    name: str

    def submit(self, submission: Submission) -> str:
        """Submit; returns the (array) job id."""
        ...

    def jobs(self, ids: Sequence[str]) -> list[JobRecord]:
        """Records of these jobs; of arrays: one record a task. A pending array's tasks are listed singly."""
        ...

    def requeue(self, job: str, *, exclude: str | None = None) -> None:
        """Requeue one job or array task; with `exclude`, held, kept off that node, and released."""
        ...

    def hurry(self, job: str) -> bool:
        """Start a requeued job (pending for reason BeginTime) as soon as nodes are free, instead of after Slurm's
        wait of two minutes. False when it is too early to be safe: ask again at the next look."""
        ...

    def cancel(self, job: str, *, signal: str | None = None) -> None:
        """Cancel (or signal) a job, an array, or one task. Cancelling a job that has ended is no error."""
        ...

    def named(self, name: str, folder: str) -> set[str]:
        """(Array) ids of this user's jobs of that name that have not ended and run in `folder`: another deployment
        may have the same name."""
        ...

    def topology(self) -> dict[str, str]:
        """Node -> its leaf switch; empty where the site tells none."""
        ...
