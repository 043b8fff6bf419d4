"""What is done about tasks whose agents are away: nothing, wait, requeue, or resubmit into the slot. Pure.

`verdict.judge` puts together what the fleet knows of the agent and what Slurm says of its job; `limits` says what
is still allowed; this module remembers what is under way, so that nothing is ever done twice at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from exahpc.broker.limits import Allowance, Limits
from exahpc.broker.memory import Kind, Memory
from exahpc.broker.values import AgentView
from exahpc.broker.verdict import PATIENCE, Facts, Patience, judge
from exahpc.deployment.spec import Deployment
from exahpc.slurm.api import JobRecord

_ENDED = ("completed", "failed", "lost")


@dataclass(frozen=True)
class Act:
    """Ask Slurm for this now, then report to `Recovery.done`. suspect: the node that lost it, or ""; exclude: all
    nodes to keep the task off."""

    key: str
    kind: Kind
    job: str
    suspect: str
    exclude: tuple[str, ...]
    why: str


@dataclass
class _Task:
    job: str
    record: JobRecord | None = None
    asked: float = float("-inf")
    run: tuple[str, int, tuple[str, ...]] | None = None
    running_since: float = 0.0
    endings: int = 0
    doing: Kind | None = None
    acted: float = float("-inf")
    settling: bool = False  # until Slurm's answers show our last deed ...
    unseen: bool = False  # ... which they cannot, when it may have made a job whose id nobody knows
    settled_run: tuple[str, int, tuple[str, ...]] | None = None
    refused: int = 0  # requeues that Slurm refused in a row
    story: str = ""


class Recovery:
    """State of all tasks' rebuilds. Times in seconds of the fleet's clock."""

    def __init__(
        self,
        deployment: Deployment,
        memory: Memory,
        now: float,
        patience: Patience = PATIENCE,
        limits: Limits | None = None,
    ) -> None:
        self._patience = patience
        self._pools = {pool.name: pool for pool in deployment.pool}
        self._no_requeue = set(memory.no_requeue)
        self._cancelled, self._replaced = set(memory.cancelled), set(memory.replaced)
        self._suspects = {node: record.at for node, record in memory.excluded.items()}
        self._tasks: dict[str, _Task] = {}
        for pool in deployment.pool:
            for number in range(pool.tasks):
                key = f"{pool.name}/{number}"
                self._tasks[key] = _Task(memory.placed.get(key, ""))
        for key, begun in memory.open.items():  # our predecessor died while asking Slurm: it may have happened
            if key in self._tasks:
                task = self._tasks[key]
                task.acted, task.settling, task.unseen = begun.at, True, begun.kind == "resubmit"
        self._allowance = Allowance(limits or Limits.of_fleet(len(self._tasks)), memory.history, now)
        self._queried = float("-inf")

    # --- events ----------------------------------------------------------------------------------------------

    def placed(self, pool: str, arrays: Sequence[str], records: Mapping[str, JobRecord]) -> None:
        """The job book. A task of which nothing was heard lives in the newest array that Slurm says holds it, or
        else in the first one, which held them all."""
        for number in range(self._pools[pool].tasks if arrays else 0):
            task = self._tasks[f"{pool}/{number}"]
            if not task.job:
                ids = [f"{array}_{number}" for array in arrays]
                task.job = next((job for job in reversed(ids) if job in records), ids[0])

    def up(self, key: str, job: str) -> None:
        """An agent is alive in this job: whatever was under way has had its effect.

        One that is heard once more from a job that was replaced (a partition healed) changes nothing.
        """
        if job in self._replaced:
            return
        task = self._tasks[key]
        task.job = job or task.job
        task.settling, task.unseen, task.refused, task.story = False, False, 0, ""

    def answered(self, records: Mapping[str, JobRecord], asked: float) -> None:
        """Slurm's answer to a query that began at `asked`. A job that is not in it is unknown to Slurm."""
        for task in self._tasks.values():
            if not task.job or asked <= task.acted:
                continue
            record = records.get(task.job) or JobRecord(task.job, "lost", "unknown to Slurm")
            same = task.record is not None and (task.record.id, task.record.raw) == (record.id, record.raw)
            task.endings = (task.endings if same else 0) + 1 if record.state in _ENDED else 0
            run = (record.id, record.restarts, record.nodes) if record.state == "running" else None
            if run is not None and run != task.run:
                task.running_since = asked
            task.record, task.asked, task.run = record, asked, run
            if not task.unseen and (run is None or run != task.settled_run):
                task.settling = False

    def done(self, key: str, kind: Kind, job: str, error: str, now: float, *, disabled: bool = False) -> bool:
        """A deed has ended; error: "" or why it failed; job: the new job of a resubmission; disabled: Slurm does
        not requeue such jobs.

        True when that was news about the pool (to be journalled).
        """
        task = self._tasks[key]
        task.doing, task.acted = None, now
        task.endings = 0
        if error:
            task.story = f"{kind} failed: {error}"
            if kind == "cancel":  # cost nothing when it began; a failing one must be paced
                self._allowance.spend(key, now)
            if kind != "requeue":
                return False
            task.refused += 1
            pool = key.rpartition("/")[0]
            news = disabled and pool not in self._no_requeue
            if disabled:
                self._no_requeue.add(pool)
            return news
        task.settling, task.settled_run = True, task.run
        task.refused = 0
        if kind == "resubmit":
            self._replaced.add(task.job)
            task.job, task.record, task.run, task.settled_run = job, None, None, None
        return False

    def decide(self, absent: Iterable[AgentView], now: float) -> list[Act]:
        """What to ask of Slurm now. Each Act must be answered by `done`."""
        views = sorted(absent, key=lambda view: view.since)
        silent = sum(view.phase == "lost" for view in views)
        blind = silent >= 3 and 2 * silent >= len(self._tasks)
        acts: list[Act] = []
        for view in views:
            task = self._tasks[view.key]
            if task.doing is not None:
                continue
            if task.settling:
                if now - task.acted < self._patience.settle:
                    task.story = "waiting for Slurm to do what was asked"
                    continue
                task.settling = task.unseen = False
            verdict = judge(self._facts(view, task, blind), self._patience, now)
            if verdict.kind is None:
                task.story = verdict.story
                continue
            refusal = self._allowance.refusal(view.key, now)
            if refusal is not None:
                task.story = f"{verdict.story}; {refusal}"
                continue
            if verdict.kind == "cancel":  # the first half of a resubmission, which will be paid for
                self._cancelled.add(task.job)
            else:
                self._allowance.spend(view.key, now)
            task.doing, task.story = verdict.kind, f"{verdict.kind}: {verdict.story}"
            exclude = self._avoid(verdict.suspect, now)
            acts.append(Act(view.key, verdict.kind, task.job, verdict.suspect, exclude, verdict.story))
        return acts

    def query_due(self, now: float, absent: bool) -> bool:
        """Whether Slurm is to be asked now; who is told True asks. Never twice within `busy` seconds."""
        if now < self._queried + (self._patience.busy if absent else self._patience.calm):
            return False
        self._queried = now
        return True

    # --- what others read ------------------------------------------------------------------------------------

    def story(self, key: str) -> str:
        return self._tasks[key].story

    def record(self, key: str) -> JobRecord | None:
        """The last that Slurm said of this task."""
        return self._tasks[key].record

    def job(self, key: str) -> str:
        return self._tasks[key].job

    def arrays(self) -> set[str]:
        """Every array that a task is known to live in: to be asked about."""
        return {task.job.partition("_")[0] for task in self._tasks.values() if task.job}

    # --- inner -----------------------------------------------------------------------------------------------

    def _facts(self, view: AgentView, task: _Task, blind: bool) -> Facts:
        fresh = task.record is not None and task.asked > view.since and task.asked > task.acted
        requeue = self._pools[view.pool].requeue and view.pool not in self._no_requeue and task.refused < 2
        return Facts(
            view=view,
            job=task.job,
            record=task.record if fresh else None,
            running_since=task.running_since,
            endings=task.endings,
            ours=task.job in self._cancelled,
            requeue=requeue,
            blind=blind,
        )

    def _avoid(self, suspect: str, now: float) -> tuple[str, ...]:
        """The suspect and the other nodes that still count as suspect, an eighth of the fleet at most."""
        if suspect:
            self._suspects[suspect] = now
        self._suspects = {n: at for n, at in self._suspects.items() if now - at < self._patience.exclusion}
        newest = sorted(self._suspects, key=lambda node: -self._suspects[node])
        return tuple(newest[: max(1, len(self._tasks) // 8)])
