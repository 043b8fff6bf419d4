"""What succession remembers of a task, and what it may order. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from exahpc.slurm.api import ENDED, JobState


@dataclass(frozen=True)
class Succeed:
    """Submit the task's successor, then call `submitted`."""

    key: str
    why: str


@dataclass(frozen=True)
class Cancel:
    """Cancel this job, which is not needed. key: its task."""

    key: str
    job: str
    why: str


@dataclass(frozen=True)
class Promote:
    """The task lives in `job` from now on; it lived in `old`."""

    key: str
    job: str
    old: str


SuccessionAct = Succeed | Cancel | Promote
_Heir = Literal["none", "asked", "queued", "here"]


@dataclass
class Lineage:
    """What is known of a task's job and of the one that follows it. Only `succession` changes it.

    job: of the current agent; until: when Slurm ends it, 0 when not known; began: when its agent was first
    seen, 0 when an earlier broker saw that; seen: its last hello; looked: when Slurm was last asked since then;
    word: what it said; heir: job of the successor, "" while it is being asked for; tied: Slurm says that this one
    may not start yet.
    """

    pool: str
    job: str = ""
    until: float = 0.0
    began: float = 0.0
    seen: float = 0.0
    looked: float = float("-inf")
    word: JobState = "running"
    state: _Heir = "none"
    heir: str = ""
    tied: bool = False
    asked: float = 0.0
    awaited: float = 0.0  # when the job was submitted that the task was promoted to, until its agent comes
    endings: int = 0
    failures: int = 0
    retry: float = 0.0
    orphan: bool = False  # asked for, and nobody heard the answer: an earlier broker's, or Slurm gave none
    declined: bool = False  # somebody cancelled the successor of this life
    warned: bool = False

    @property
    def succeeded(self) -> bool:
        """Its successor is under way, or is being asked for. One in a chain is not while it waits for its time and
        the job is not over: until then the task is looked after as one that has none."""
        return self.state == "asked" or (bool(self.heir) and (not self.tied or self.word in ENDED))

    def forget(self) -> None:
        self.state, self.heir, self.endings = "none", "", 0
        self.warned = self.orphan = self.tied = False
