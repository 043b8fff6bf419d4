"""What is known of one task's job, and what is under way about it. Pure; used by `recovery` alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from exahpc.broker.memory import Kind
from exahpc.broker.verdict import SURE
from exahpc.deployment.spec import Pool
from exahpc.slurm.api import ENDED, JobRecord

Run = tuple[str, int, tuple[str, ...]]
"""One run of a job: its id, how often it was requeued, its nodes."""


class Ending(NamedTuple):
    """asked: when Slurm was asked; raw: its word."""

    asked: float
    job: str
    raw: str

    @property
    def own(self) -> bool:
        """What ran there ended: not because its nodes were taken away."""
        return self.raw.partition(" ")[0] in ("COMPLETED", "FAILED", "OUT_OF_MEMORY", "LAUNCH_FAILED")


@dataclass
class Task:
    """node: where its agent was last; rebuilt: since when it is being rebuilt and not ready again, None when it is
    not; kept_off: the node that its job was kept off when it was requeued; woken: it was parked, and is wanted
    again; given_up: its budget is spent; record: Slurm's last word, to a query that began at `asked`; endings:
    answers in a row that told the same ending; doing: asked of Slurm just now; acted: when the last deed ended;
    settling: until Slurm's answers show it, which they cannot (`unseen`) when it may have made a job that nobody
    knows; refused: requeues that Slurm refused in a row; ended: the last ending of
    a job that it lived in."""

    job: str
    pool: Pool
    node: str = ""
    rebuilt: float | None = None
    kept_off: str = ""
    woken: bool = False
    given_up: bool = False
    record: JobRecord | None = None
    asked: float = float("-inf")
    run: Run | None = None
    running_since: float = 0.0
    endings: int = 0
    doing: Kind | None = None
    acted: float = float("-inf")
    settling: bool = False
    unseen: bool = False
    settled_run: Run | None = None
    refused: int = 0
    story: str = ""
    ended: Ending | None = None

    def answered(self, record: JobRecord, asked: float) -> None:
        """Slurm's word on its job. One from before our last deed says nothing."""
        if asked <= self.acted:
            return
        same = self.record is not None and (self.record.id, self.record.raw) == (record.id, record.raw)
        self.endings = (self.endings if same else 0) + 1 if record.state in ENDED else 0
        if self.endings >= SURE:
            self.ended = Ending(asked, record.id, record.raw)
        run = (record.id, record.restarts, record.nodes) if record.state == "running" else None
        if run is not None and run != self.run:
            self.running_since = asked
        self.record, self.asked, self.run = record, asked, run
        if not self.unseen and (run is None or run != self.settled_run):
            self.settling = False

    def up(self, job: str, node: str) -> None:
        """Its agent is alive: whatever was under way has had its effect."""
        self.job, self.node = job or self.job, node or self.node
        self.woken, self.given_up, self.kept_off = False, False, ""
        self.settling, self.unseen, self.refused, self.story = False, False, 0, ""

    def move(self, job: str, now: float) -> None:
        """It lives in this job from now on, of which nothing is known yet."""
        self.job, self.record, self.run, self.settled_run = job, None, None, None
        self.acted, self.endings, self.settling, self.unseen, self.woken = now, 0, False, False, False

    def word(self, since: float) -> JobRecord | None:
        """Slurm's last word, if it is younger than `since` and our last deed."""
        return self.record if self.asked > since and self.asked > self.acted else None

    @property
    def over(self) -> bool:
        """Its job has ended, as far as known."""
        return self.record is None or self.record.state in ENDED

    @property
    def waits(self) -> bool:
        """Its job waits in Slurm's queue."""
        return self.record is not None and self.record.state in ("pending", "requeued")
