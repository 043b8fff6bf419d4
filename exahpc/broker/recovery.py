"""What is done about tasks whose agents are away: nothing, wait, requeue, or resubmit into the slot. Pure.

`verdict.judge` puts together what the fleet knows of the agent and what Slurm says of its job; `limits` says what
is still allowed; this module remembers what is under way, so that nothing is ever done twice at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from exahpc.broker.limits import Allowance, Limits, Refusal, loads_at_once
from exahpc.broker.memory import Kind, Memory
from exahpc.broker.rebuilt import Task
from exahpc.broker.switches import Dark, Network
from exahpc.broker.values import AgentView, JobWord
from exahpc.broker.verdict import PATIENCE, Facts, Patience, Verdict, is_blind, judge
from exahpc.deployment.spec import Deployment
from exahpc.slurm.api import ENDED, JobRecord


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


@dataclass(frozen=True)
class _Scene:
    """What is the same for all tasks that are away. nodes: where the agents of the others are."""

    blind: bool
    dark: Dark
    nodes: set[str]


class Recovery:
    """State of all tasks' rebuilds. Times in seconds of the fleet's clock."""

    def __init__(
        self,
        deployment: Deployment,
        memory: Memory,
        now: float,
        patience: Patience = PATIENCE,
        limits: Limits | None = None,
        dice: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """dice: a random number in [0, 1), for pauses."""
        self._patience = patience
        self._pools = {pool.name: pool for pool in deployment.pool}
        self._ready_seconds = deployment.recovery.ready_seconds
        self._no_requeue = set(memory.no_requeue)
        self._cancelled, self._replaced = set(memory.cancelled), set(memory.replaced)
        self._suspects = {node: record.at for node, record in memory.excluded.items()}
        self._tasks: dict[str, Task] = {}
        for pool in deployment.pool:
            for number in range(pool.tasks):
                key = f"{pool.name}/{number}"
                self._tasks[key] = task = Task(memory.placed.get(key, ""), pool)
                if (agent := memory.agents.get(key)) is not None:
                    task.node, excluded = agent.node, memory.excluded.get(agent.node)
                    task.kept_off = agent.node if excluded is not None and excluded.at >= agent.at else ""
        for key, begun in memory.open.items():  # our predecessor died while asking Slurm: it may have happened
            if key in self._tasks:
                task = self._tasks[key]
                task.acted, task.settling, task.unseen = begun.at, True, begun.kind == "resubmit"
        self._allowance = Allowance(limits or Limits.of_fleet(len(self._tasks)), memory.history, now, dice)
        self.network = Network()
        self._alerts: list[str] = []
        self._queried = float("-inf")

    # --- events ----------------------------------------------------------------------------------------------

    def placed(self, pool: str, arrays: Sequence[str], records: Mapping[str, JobRecord], now: float) -> None:
        """The job book. A task of which nothing was heard lives in the newest array that Slurm says holds it, or
        else in the first one, which held them all. One that was submitted without an answer lives in a newer one
        than before, if there is one."""
        for number in range(self._pools[pool].tasks if arrays else 0):
            task = self._tasks[f"{pool}/{number}"]
            ids = [f"{array}_{number}" for array in arrays]
            if task.job and task.unseen:
                found = [job for job in ids if job in records and records[job].state not in ENDED]
                if found and found[-1] != task.job and found[-1] not in self._replaced:
                    self._replaced.add(task.job)
                    task.move(found[-1], now)
            if not task.job:
                task.job = next((job for job in reversed(ids) if job in records), ids[0])

    def up(self, key: str, job: str, node: str = "") -> None:
        """An agent is alive in this job: whatever was under way has had its effect.

        One that is heard once more from a job that was replaced (a partition healed) changes nothing.
        """
        if job in self._replaced:
            return
        self._tasks[key].up(job, node)

    def submitted(self, job: str) -> None:
        """See `Fleet.submitted`."""
        self._replaced.discard(job)
        self._cancelled.discard(job)

    def loaded(self, key: str) -> None:
        """All replicas of its agent are ready."""
        self._tasks[key].rebuilt = None

    def promote(self, key: str, job: str, now: float) -> None:
        """The task lives in this job, which is on its way: its successor's."""
        task = self._tasks[key]
        self._replaced.add(task.job)
        task.move(job, now)

    def wake(self, key: str) -> None:
        """The task was parked and is wanted again."""
        self._tasks[key].woken = True

    def answered(self, records: Mapping[str, JobRecord], asked: float) -> None:
        """Slurm's answer to a query that began at `asked`. A job that is not in it is unknown to Slurm."""
        for task in self._tasks.values():
            if task.job:
                task.answered(records.get(task.job) or JobRecord(task.job, "lost", "unknown to Slurm"), asked)

    @property
    def searching(self) -> bool:
        """Jobs may have been submitted that nobody has noted."""
        return any(task.unseen for task in self._tasks.values())

    def done(
        self,
        key: str,
        kind: Kind,
        job: str,
        error: str,
        now: float,
        *,
        disabled: bool = False,
        unknown: bool = False,
        tried: bool = True,
    ) -> bool:
        """A deed has ended; error: "" or why it failed; job: the new job of a resubmission; disabled: Slurm does
        not requeue such jobs; unknown: Slurm may have done it, and may tell so later; tried: it was asked at all.

        True when that was news about the pool (to be journalled).
        """
        task = self._tasks[key]
        task.doing, task.acted = None, now
        task.endings = 0
        if error:
            task.story = f"{kind} failed: {error}"
            task.settling = task.unseen = unknown and kind == "resubmit"
            if not tried:
                if kind != "cancel" and not task.woken:
                    self._allowance.untried(key)
                return False
            if kind == "cancel":  # cost nothing when it began; a failing one must be paced
                self._allowance.spend(key, now)
            if kind != "requeue":
                return False
            task.refused, task.kept_off = task.refused + 1, ""
            pool = key.rpartition("/")[0]
            news = disabled and pool not in self._no_requeue
            if disabled:
                self._no_requeue.add(pool)
            return news
        task.settling, task.settled_run = True, task.run
        task.refused = 0
        if kind != "cancel":
            task.rebuilt = now
        if kind == "resubmit":
            self._replaced.add(task.job)
            self.submitted(job)
            task.move(job, now)
            task.settling = True
        return False

    def decide(self, absent: Iterable[AgentView], now: float, heirs: Container[str] = ()) -> list[Act]:
        """What to ask of Slurm now. Each Act must be answered by `done`. heirs: tasks whose successor is under
        way."""
        views = sorted(absent, key=lambda view: view.since)
        scene = self._scene(views)
        loading = self._loading(now)
        acts: list[Act] = []
        for view in views:
            task = self._tasks[view.key]
            if task.doing is not None:
                continue
            if view.key in heirs:
                task.story = "its successor is under way"
                continue
            if task.settling:
                if now - task.acted < self._patience.settle:
                    task.story = "waiting for Slurm to do what was asked"
                    continue
                task.settling = task.unseen = False
            verdict = self._judge(view, task, scene, now)
            if verdict.kind is None:
                task.story = verdict.story
                continue
            refusal = self._refusal(view, task, loading, now)
            if refusal is not None and (refusal.spent or not verdict.urgent):
                task.story = f"{verdict.story}; {refusal.why}"
                continue
            if verdict.kind == "cancel":  # the first half of a resubmission, which will be paid for
                self._cancelled.add(task.job)
            else:
                self._allowance.spend(view.key, now, counts=not task.woken)
                loading[view.pool] += 1
            task.kept_off = verdict.suspect
            task.doing, task.story = verdict.kind, f"{verdict.kind}: {verdict.story}"
            exclude = self._avoid((verdict.suspect, *scene.dark.beside(verdict.suspect)), now)
            acts.append(Act(view.key, verdict.kind, task.job, verdict.suspect, exclude, verdict.story))
        return acts

    def surplus(self, parked: Iterable[AgentView], now: float) -> list[Act]:
        """Tasks that are not wanted and wait in Slurm's queue are cancelled. Answer each Act by `done`."""
        acts: list[Act] = []
        for view in parked:
            task = self._tasks[view.key]
            if task.waits and task.doing is None and not task.settling:
                task.doing = "cancel"
                self._cancelled.add(task.job)
                acts.append(Act(view.key, "cancel", task.job, "", (), "it is not needed now"))
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

    def said(self, view: AgentView) -> JobWord:
        """What Slurm said of an absent task."""
        task = self._tasks[view.key]
        if task.ended is not None and task.ended.asked > view.since:
            words = f"its job {task.ended.job} is over ({task.ended.raw})"
            return JobWord(over=words) if task.ended.own else JobWord(taken=True)
        return JobWord(taken=task.waits and task.asked > view.since)

    def job(self, key: str) -> str:
        return self._tasks[key].job

    def avoid(self, now: float) -> tuple[str, ...]:
        """Nodes that count as suspect."""
        return self._avoid((), now)

    def alerts(self) -> list[str]:
        """What an operator should know, told once."""
        alerts, self._alerts = self._alerts, []
        return alerts

    def notes(self) -> list[str]:
        """For `status`."""
        lines = self.network.notes(len(self._tasks))
        retired = [key for key, task in self._tasks.items() if task.given_up]
        if retired:
            shown = ", ".join(retired[:5]) + (" ..." if len(retired) > 5 else "")
            lines.append(f"given up for now, {len(retired)} of {len(self._tasks)} tasks: {shown}")
        return lines

    def arrays(self) -> set[str]:
        """Every array that a task is known to live in: to be asked about."""
        return {task.job.partition("_")[0] for task in self._tasks.values() if task.job}

    # --- inner -----------------------------------------------------------------------------------------------

    def _scene(self, views: Sequence[AgentView]) -> _Scene:
        away = {view.key for view in views}
        nodes = {task.node for key, task in self._tasks.items() if task.node and key not in away}
        silent = [view.node for view in views if view.phase == "lost"]
        dark, news = self.network.look((task.node for task in self._tasks.values()), silent)
        self._alerts += news
        return _Scene(is_blind(views, len(self._tasks)), dark, nodes)

    def _loading(self, now: float) -> Counter[str]:
        """Tasks of each pool that load again because of us; those in Slurm's queue do not yet."""
        count: Counter[str] = Counter()
        for task in self._tasks.values():
            if task.rebuilt is None:
                continue
            if now - task.rebuilt > self._ready_seconds:
                task.rebuilt = None
            elif not task.waits:
                count[task.pool.name] += 1
        return count

    def _judge(self, view: AgentView, task: Task, scene: _Scene, now: float) -> Verdict:
        if task.woken and task.over and view.phase in ("unheard", "gone"):
            return Verdict("resubmit", "it is wanted again")
        return judge(self._facts(view, task, scene), self._patience, now)

    def _refusal(self, view: AgentView, task: Task, loading: Counter[str], now: float) -> Refusal | None:
        refusal = self._allowance.turn(now) if task.woken else self._allowance.refusal(view.key, now)
        spent = refusal is not None and refusal.spent
        if spent and not task.given_up and refusal is not None:
            self._alerts.append(f"{view.key} is {refusal.why}")
        task.given_up = spent
        most = loads_at_once(task.pool.tasks)
        if refusal is None and not task.woken and loading[view.pool] >= most:
            return Refusal(f"waits until fewer than {most} rebuilt tasks load")
        return refusal

    def _facts(self, view: AgentView, task: Task, scene: _Scene) -> Facts:
        requeue = self._pools[view.pool].requeue and view.pool not in self._no_requeue and task.refused < 2
        return Facts(
            view=view,
            job=task.job,
            record=task.word(view.since),
            running_since=task.running_since,
            endings=task.endings,
            ours=task.job in self._cancelled,
            requeue=requeue,
            blind=scene.blind,
            dark=view.node in scene.dark,
            off=task.kept_off == view.node,
            alone=not scene.nodes - {view.node},
        )

    def _avoid(self, suspects: Sequence[str], now: float) -> tuple[str, ...]:
        """These and the other nodes that still count as suspect, but of others an eighth of the fleet at most."""
        self._suspects.update((node, now) for node in suspects if node)
        self._suspects = {n: at for n, at in self._suspects.items() if now - at < self._patience.exclusion}
        newest = sorted(self._suspects, key=lambda node: -self._suspects[node])
        return tuple(newest[: max(len(suspects), len(self._tasks) // 8, 1)])
