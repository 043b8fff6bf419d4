"""A simulated Slurm: nodes behind switches, a queue with waits, jobs that end, requeues. It only obeys."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from exahpc.deployment.spec import Deployment, Pool
from exahpc.lab.simulate.scenario import Machine, Wait
from exahpc.lab.simulate.timeline import Timeline
from exahpc.slurm.api import JobRecord, JobState
from exahpc.slurm.submission import WARN_SECONDS

State = Literal["PENDING", "RUNNING", "COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT"]
KILL_WAIT = 30.0
"""Seconds from Slurm's TERM at the time limit to its KILL."""
_NINETY = 1.2815515655446004  # of a normal distribution, in standard deviations


@dataclass
class Node:
    """switch: number; down: since when, None while it works; job: that holds it."""

    name: str
    switch: int
    down: float | None = None
    job: Job | None = None


@dataclass
class Job:
    """One array task. due: when Slurm would start it; until: its time limit, 0 if there is none; run: counts its
    starts and ends."""

    id: str
    pool: Pool
    task: int
    due: float
    state: State = "PENDING"
    nodes: tuple[Node, ...] = ()
    until: float = 0.0
    restarts: int = 0
    exclude: frozenset[str] = frozenset()
    run: int = 0

    @property
    def node(self) -> Node:
        return self.nodes[0]


class Watcher(Protocol):
    """Who is told what Slurm does to a job's processes."""

    def job_started(self, job: Job) -> None: ...
    def job_warned(self, job: Job) -> None: ...
    def job_told_to_end(self, job: Job) -> None: ...
    def job_killed(self, job: Job) -> None:
        """All its processes are gone."""

    def node_lost(self, job: Job) -> None:
        """They are gone, and so is the node: nobody closes a connection."""


class Cluster:
    """All nodes and jobs. watcher: is told at once."""

    def __init__(
        self, timeline: Timeline, machine: Machine, deployment: Deployment, watcher: Watcher, draw: random.Random
    ) -> None:
        self._timeline, self._machine, self._watcher, self._draw = timeline, machine, watcher, draw
        self._pools = {pool.name: pool for pool in deployment.pool}
        self.queue: Wait = machine.queue
        filled = sum(pool.tasks * pool.nodes_per_replica for pool in deployment.pool)
        count = filled + math.ceil(filled * machine.spare_nodes)
        self.nodes = [Node(f"n{number:04d}", number // machine.nodes_per_switch) for number in range(count)]
        self.jobs: dict[str, Job] = {}
        self._arrays = 0
        self._pending: list[Job] = []

    # --- what is asked of it ---------------------------------------------------------------------------------

    def begin(self, pool: Pool) -> str:
        """A job array of the tasks that `up` submits, which runs already. Returns its id."""
        self._arrays += 1
        for task in range(pool.first_tasks):
            job = Job(f"{self._arrays}_{task}", pool, task, self._timeline.now)
            self.jobs[job.id] = job
            self._pending.append(job)
        self._start()
        return str(self._arrays)

    def submit(self, pool: str, task: int, exclude: Iterable[str]) -> str:
        """One more job for this task. Returns its id."""
        self._arrays += 1
        wanted = self._pools[pool]
        job = Job(f"{self._arrays}_{task}", wanted, task, 0.0, exclude=frozenset(exclude))
        self.jobs[job.id] = job
        self._enqueue(job)
        return job.id

    def requeue(self, job: Job, exclude: Iterable[str] = ()) -> None:
        """Run it again, elsewhere. One that waits already is only kept off these nodes."""
        job.exclude |= frozenset(exclude)
        if job.state == "RUNNING":
            self._watcher.job_killed(job)
            self._free(job)
            job.restarts += 1
            self._enqueue(job)

    def cancel(self, job: Job) -> None:
        if job.state == "RUNNING":
            self._watcher.job_killed(job)
        self._end(job, "CANCELLED")

    def ended(self, job: Job, code: int) -> None:
        """The batch script ended by itself."""
        if job.state == "RUNNING":
            if code == 75:
                self._free(job)
                job.restarts += 1
                self._enqueue(job)
            else:
                self._end(job, "COMPLETED" if code == 0 else "FAILED")

    def records(self) -> dict[str, JobRecord]:
        """What a query tells: ended jobs are remembered."""
        return {job.id: self._record(job) for job in self.jobs.values()}

    def limit(self, job: Job, seconds: float) -> None:
        """Its time limit is so far away from now on."""
        job.until = self._timeline.now + seconds
        self._timeline.at(job.until - WARN_SECONDS, self._warn, job, job.until)
        self._timeline.at(job.until, self._term, job, job.until)
        self._timeline.at(job.until + KILL_WAIT, self._kill, job, job.until)

    # --- what breaks -----------------------------------------------------------------------------------------

    def node_down(self, node: Node, seconds: float | None) -> None:
        if node.down is not None:
            return
        node.down = self._timeline.now
        if node.job is not None:
            self._watcher.node_lost(node.job)
            self._timeline.after(self._machine.noticed_seconds, self._notice, node, node.job, node.job.run)
        if seconds is not None:
            self._timeline.after(seconds, self._node_up, node)

    # --- inside ----------------------------------------------------------------------------------------------

    def _node_up(self, node: Node) -> None:
        if node.job is not None:
            self._notice(node, node.job, node.job.run)
        node.down = None
        self._start()

    def _notice(self, node: Node, job: Job, run: int) -> None:
        """Slurm sees that the node is gone."""
        if job.state == "RUNNING" and job.run == run and node.down is not None:
            self._watcher.job_killed(job)
            self._free(job)
            if job.pool.requeue:
                job.restarts += 1
                self._enqueue(job)
            else:
                self._end(job, "NODE_FAIL")

    def _warn(self, job: Job, until: float) -> None:
        if job.until == until and job.state == "RUNNING":
            self._watcher.job_warned(job)

    def _term(self, job: Job, until: float) -> None:
        if job.until == until and job.state == "RUNNING":
            self._watcher.job_told_to_end(job)

    def _kill(self, job: Job, until: float) -> None:
        if job.until == until and job.state == "RUNNING":
            self._watcher.job_killed(job)
            self._end(job, "TIMEOUT")

    def _enqueue(self, job: Job) -> None:
        wait = self.queue
        sigma = math.log(wait.p90 / wait.median) / _NINETY if wait.p90 > wait.median > 0 else 0.0
        seconds = wait.median * math.exp(sigma * self._draw.gauss(0.0, 1.0))
        job.state, job.due, job.until = "PENDING", self._timeline.now + seconds, 0.0
        self._pending.append(job)
        self._timeline.at(job.due, self._start)

    def _free(self, job: Job) -> None:
        for node in job.nodes:
            node.job = None
        job.nodes = ()
        job.run += 1
        self._timeline.after(0.0, self._start)

    def _end(self, job: Job, state: State) -> None:
        if job in self._pending:
            self._pending.remove(job)
        if job.nodes:
            self._free(job)
        job.state = state

    def _start(self) -> None:
        """Start what is due, in order, where nodes are free."""
        now = self._timeline.now
        due = sorted((job for job in self._pending if job.due <= now), key=lambda job: job.due)
        free = [node for node in self.nodes if node.job is None and node.down is None] if due else []
        for job in due:
            fit = [node for node in free if node.name not in job.exclude][: job.pool.nodes_per_replica]
            if len(fit) < job.pool.nodes_per_replica:
                continue
            self._pending.remove(job)
            job.state, job.nodes = "RUNNING", tuple(fit)
            for node in fit:
                node.job = job
                free.remove(node)
            if self._machine.walltime_seconds is not None:
                self.limit(job, self._machine.walltime_seconds)
            self._watcher.job_started(job)

    def _record(self, job: Job) -> JobRecord:
        states: dict[State, JobState] = {
            "PENDING": "requeued" if job.restarts else "pending",
            "RUNNING": "running",
            "COMPLETED": "completed",
        }
        nodes = tuple(node.name for node in job.nodes)
        reason = "Resources" if job.state == "PENDING" else ""
        return JobRecord(
            job.id, states.get(job.state, "failed"), job.state, reason, nodes, job.restarts, job.until
        )
