"""When the successor of a task is submitted, and what becomes of it. Pure: events and a clock reading in, acts
out.

A successor is a new job for the same task, submitted early enough (`leads`). A task has one at a time.

When the current agent ends before its successor has come, the successor's job *is* the task from then on
(`Promote`), and what Slurm still holds of the old job is cancelled: so a requeue that crosses a succession never
gives two lives.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from exahpc.broker.leads import End, Leads
from exahpc.broker.learned import Learned
from exahpc.broker.lineage import Cancel, Lineage, Promote, Succeed, SuccessionAct
from exahpc.broker.memory import Memory
from exahpc.broker.values import AgentView
from exahpc.broker.verdict import PATIENCE, SURE, Patience, is_blind
from exahpc.deployment.spec import Deployment
from exahpc.slurm.api import ENDED, JobRecord, JobState

RETRY_SECONDS, LONGEST_RETRY = 30.0, 900.0
_RUNS: tuple[JobState, ...] = ("running", "suspended")


class Succession:
    """State of all tasks' successors. Times in seconds of the fleet's clock, which is Unix time."""

    def __init__(self, deployment: Deployment, memory: Memory, now: float, patience: Patience = PATIENCE) -> None:
        self._mode = deployment.walltime.successors
        self.drain_seconds = deployment.walltime.drain_seconds
        self._patience = patience
        self._tasks = {f"{p.name}/{task}": Lineage(p.name) for p in deployment.pool for task in range(p.tasks)}
        self._learned = Learned((sample.pool, sample.what, sample.seconds) for sample in memory.samples)
        self._leads = {pool.name: Leads(deployment, pool, self._learned, now) for pool in deployment.pool}
        self._chain: dict[str, list[str]] = {}  # what is left of it
        self._unasked: set[str] = set()  # tasks whose end is not known, until Slurm was asked
        self._spent: dict[str, tuple[str, float]] = {}  # job -> (task, since when it should be over)
        for key, agent in memory.agents.items():
            if key in self._tasks:
                self._tasks[key].job, self._tasks[key].until = agent.job, agent.until
        for key, heir in memory.heirs.items():
            if key in self._tasks:
                task = self._tasks[key]
                task.state, task.heir, task.asked = ("queued" if heir.job else "asked"), heir.job, heir.at
                task.orphan = not heir.job

    # --- events ----------------------------------------------------------------------------------------------

    def up(self, view: AgentView, now: float) -> float | None:
        """The task's current agent said hello. Returns how long its job waited, as `coming` does."""
        task = self._tasks[view.key]
        awaited, task.awaited = task.awaited, 0.0
        promoted = awaited > 0 and view.job == task.job
        if view.job and view.job != task.job:
            task.job, task.until, task.began, task.word = view.job, 0.0, now, "running"
            task.declined, task.failures, task.retry = False, 0, 0.0
            if view.job == task.heir or task.state == "asked":
                task.forget()
            self._follow(view.key, task)
        task.until, task.seen = view.until, now  # of an earlier run of the same job: nothing
        if not task.until:
            self._unasked.add(view.key)
        return self._waited(task, awaited, now) if promoted else None

    def coming(self, view: AgentView, now: float) -> float | None:
        """A successor said hello. Returns how long it waited, where that is known: to be journalled."""
        task = self._tasks[view.key]
        known, task.heir = task.heir, view.job
        first, task.state, task.orphan = task.state != "here", "here", False
        return self._waited(task, task.asked, now) if known == view.job and first and task.asked else None

    def _waited(self, task: Lineage, asked: float, now: float) -> float:
        self._learned.add(task.pool, "wait", now - asked)
        return now - asked

    def lapsed(self, view: AgentView, now: float) -> None:
        """A successor that had come is gone: its job, if Slurm still has it, is of no use."""
        task = self._tasks[view.key]
        self._spent[view.job] = (view.key, now)
        if view.job == task.heir:
            self._failed(view.key, task, now)

    def loaded(self, pool: str, seconds: float) -> None:
        """An agent's replicas are ready, so long after its hello."""
        self._learned.add(pool, "load", seconds)

    def retired(self, key: str, job: str, now: float) -> None:
        """The task lives elsewhere: this job is over soon, or else it is cancelled."""
        self._spent[job] = (key, now + self.drain_seconds + self._patience.hung)

    def chained(self, chain: Mapping[str, Sequence[str]]) -> None:
        """What `up` submitted in advance: "pool/task" -> jobs in their order."""
        self._chain = {key: list(jobs) for key, jobs in chain.items()}
        for key, task in self._tasks.items():
            self._follow(key, task)

    def _follow(self, key: str, task: Lineage) -> None:
        """The successor in the chain is the one behind the current job."""
        jobs = self._chain.get(key, [])
        if task.job in jobs:
            del jobs[: jobs.index(task.job) + 1]
        if self._mode == "chain" and jobs and task.state == "none":
            task.state, task.heir, task.asked = "queued", jobs[0], 0.0

    def _drop(self, key: str, task: Lineage) -> None:
        """The successor is of no use. In a chain another one is behind it, which starts as soon as that ends."""
        jobs = self._chain.get(key, [])
        if task.heir in jobs:
            del jobs[: jobs.index(task.heir) + 1]
        task.forget()
        self._follow(key, task)

    def answered(self, records: Mapping[str, JobRecord], asked: float, now: float) -> None:
        """Slurm's answer to a query that began at `asked`. A job that is not in it is unknown to Slurm."""
        for key, task in self._tasks.items():
            if asked > task.seen:
                self._unasked.discard(key)
                record = records.get(task.job)
                task.until = record.end if record is not None and record.end else task.until
                task.looked, task.word = asked, record.state if record is not None else "lost"
            if task.state not in ("queued", "here"):
                continue
            heir = records.get(task.heir)
            task.tied = heir is not None and heir.reason == "Dependency"
            task.endings = task.endings + 1 if heir is None or heir.state in ENDED else 0
            if task.endings >= SURE:
                task.declined = heir is not None and heir.raw.startswith("CANCELLED")
                self._failed(key, task, now)
        for job in [job for job in self._spent if job not in records or records[job].state in ENDED]:
            del self._spent[job]
        for job, (key, due) in self._spent.items():
            if records[job].state in ("pending", "requeued"):  # it was requeued while it was succeeded
                self._spent[job] = (key, min(due, now))

    def search(self, pools: Mapping[str, Sequence[str]], records: Mapping[str, JobRecord], now: float) -> None:
        """All arrays of each pool that Slurm knows. The one that an earlier broker asked for is among them soon,
        or was never submitted."""
        for key, task in self._tasks.items():
            if not task.orphan:
                continue
            number = key.rpartition("/")[2]
            for job in (f"{array}_{number}" for array in reversed(pools.get(task.pool, ()))):
                known = job == task.job or job in self._spent
                if not known and job in records and records[job].state not in ENDED:
                    task.state, task.heir, task.endings, task.orphan = "queued", job, 0, False
                    break
            if task.orphan and now - task.asked > self._patience.settle:
                self._failed(key, task, now)

    @property
    def searching(self) -> bool:
        """Whether `search` may find something."""
        return any(task.orphan for task in self._tasks.values())

    def submitted(self, key: str, job: str, error: str, now: float, *, unknown: bool = False) -> None:
        """How a `Succeed` went. unknown: Slurm may have taken it, and may tell so later."""
        task = self._tasks[key]
        if unknown:
            task.orphan, task.asked = task.state == "asked", now
        elif error:
            self._failed(key, task, now)
        elif task.state == "asked":  # else its agent was faster than our answer
            task.state, task.heir, task.asked, task.endings = "queued", job, now, 0

    def _failed(self, key: str, task: Lineage, now: float) -> None:
        self._drop(key, task)
        task.retry = now + min(LONGEST_RETRY, RETRY_SECONDS * 2**task.failures)
        task.failures += 1

    # --- decisions -------------------------------------------------------------------------------------------

    def decide(
        self, absent: Iterable[AgentView], parked: Container[str], now: float, *, frozen: bool = False
    ) -> list[SuccessionAct]:
        """What to do now. absent: wanted agents that are not alive; frozen: no further node may be asked for."""
        away = {view.key: view for view in absent}
        blind = is_blind(away.values(), len(self._tasks))
        ending = {key for key, _ in self._spent.values()}  # have a job too many already
        acts: list[SuccessionAct] = []
        ends: dict[str, list[End]] = {}
        for key, task in self._tasks.items():
            if task.state == "asked":
                continue
            if key in parked or (frozen and task.state == "queued"):
                if task.heir:
                    why = "its task is not needed now" if key in parked else "the budget is used up"
                    acts.append(Cancel(key, task.heir, why))
                    self._spent[task.heir] = (key, now + self._patience.settle)
                    self._drop(key, task)
            elif key in away:
                if task.succeeded and self._is_over(task, away[key], now, blind):
                    acts += self._promote(key, task, away[key], now)
            elif task.state == "none" and task.until and not task.declined and key not in ending:
                ends.setdefault(task.pool, []).append(End(task.until, key, task.began, task.retry))
        if self._mode == "auto" and not frozen:
            for pool in ends:
                acts += self._submit(pool, ends[pool], now)
        return acts + self._sweep(now)

    def _is_over(self, task: Lineage, view: AgentView, now: float, blind: bool) -> bool:
        """An agent may only be restarted in its job, which takes as long as its node is slow: Slurm knows."""
        if view.job != task.job:  # the task was promoted already, and its agent is on its way
            return False
        away = now - view.since
        match view.phase:
            case "gone":
                over = task.looked > view.since and task.word not in _RUNS
                return view.handed_back or over or away >= self._patience.start
            case "lost":
                return not blind and away >= self._patience.hung
            case _:
                return False

    def _promote(self, key: str, task: Lineage, view: AgentView, now: float) -> list[SuccessionAct]:
        old, job = task.job, task.heir
        task.forget()
        task.job, task.until, task.began, task.awaited, task.word = job, 0.0, 0.0, task.asked, "pending"
        self._follow(key, task)
        acts: list[SuccessionAct] = [Promote(key, job, old)]
        self.retired(key, old, now)
        if view.handed_back or view.phase == "lost":
            acts.append(Cancel(key, old, f"its successor {job} is under way"))
        return acts

    def _submit(self, pool: str, ends: list[End], now: float) -> list[SuccessionAct]:
        tasks = [task for task in self._tasks.values() if task.pool == pool]
        waiting = max((now - task.asked for task in tasks if task.state == "queued" and task.asked), default=0.0)
        acts: list[SuccessionAct] = []
        for end in self._leads[pool].due(ends, waiting, now):
            task = self._tasks[end.key]
            task.state, task.asked = "asked", now
            acts.append(Succeed(end.key, f"its job {task.job} ends in {(end.time - now) / 60:.0f} min"))
        return acts

    def _sweep(self, now: float) -> list[SuccessionAct]:
        acts: list[SuccessionAct] = []
        for job, (key, due) in list(self._spent.items()):
            if now >= due:
                acts.append(Cancel(key, job, "its task lives in another job"))
                self._spent[job] = (key, now + self._patience.settle)
        return acts

    # --- what others read ------------------------------------------------------------------------------------

    def heir(self, key: str) -> str:
        """Job of the successor that is under way; "" while there is none, or none that is known."""
        return self._tasks[key].heir

    def all_heirs(self) -> dict[str, str]:
        """Task -> job of its successor, where one is under way."""
        return {key: task.heir for key, task in self._tasks.items() if task.heir}

    def succeeded(self) -> set[str]:
        """Tasks that need no other care, because a successor is under way."""
        return {key for key, task in self._tasks.items() if task.succeeded}

    @property
    def curious(self) -> bool:
        """Slurm should be asked soon: successors are under way, or a job's end is not known yet."""
        return bool(self._unasked) or any(
            task.state == "asked" or (task.state == "queued" and task.asked) for task in self._tasks.values()
        )

    def warn(self, key: str) -> bool:
        """The task's agent drains by itself: True once when it should hear that it has a successor."""
        task = self._tasks[key]
        if not task.heir or task.warned:
            return False
        task.warned = True
        return True

    def arrays(self) -> set[str]:
        """To be asked about."""
        jobs = [task.heir for task in self._tasks.values() if task.heir] + list(self._spent)
        return {job.partition("_")[0] for job in jobs}

    def notes(self) -> list[str]:
        """For `status`."""
        queued = sum(task.state == "queued" and task.asked > 0 for task in self._tasks.values())
        lines = [f"{queued} successors wait in Slurm's queue"] if queued else []
        last = sum(task.state == "none" and task.until > 0 for task in self._tasks.values())
        if self._mode == "chain" and self._chain and last:
            lines.append(f"the chain of successors ends: {last} tasks have none left")
        return lines
