"""A virtual supercomputer around the broker's real decision code: Slurm, nodes and agents by a virtual clock.

One step is one second. Nothing here decides anything that the product decides: it only obeys, breaks, and notes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from exahpc.broker.fleet import Fleet
from exahpc.broker.lineage import Cancel, Promote, Succeed
from exahpc.broker.memory import Agent, Begun, Ended, Excluded, Heir, Memory, NoRequeue, Replaced, Sample
from exahpc.broker.recovery import Act, Recovery
from exahpc.broker.succession import Succession
from exahpc.broker.values import AgentView, Changed, Coming, Lapsed, Loaded, Retired, Superseded, Tell, Up
from exahpc.deployment.policy import Walltime
from exahpc.deployment.spec import Deployment, Model, Pool
from exahpc.deployment.spec import Recovery as RecoveryKeys
from exahpc.slurm.api import JobRecord
from exahpc.wire import messages as m

HEIR = "heir:"  # marks what is done for a succession
BEAT = 2.0
DETECT = 26  # seconds until Slurm itself notices a dead node
RETURN = 7  # seconds from requeued to running again, on a free node
BOOT = 5  # seconds from a job's start to its agent's hello
DISABLED = "Requested operation is presently disabled"
LOAD = 20  # seconds from there to a ready replica
WARN = 120  # seconds before its time limit at which Slurm warns a job, up to half a minute earlier
DRAIN = 60  # longest drain after a warning


@dataclass
class Job:
    """One array task in Slurm's books."""

    id: str
    task: int
    state: str = "PENDING"
    node: str = ""
    since: int = 0
    restarts: int = 0
    excluded: set[str] = field(default_factory=set)
    waits: int = 1  # seconds in the queue, where nodes are free
    end: int = 0  # time limit of this run, 0: none
    warning: int = 0

    @property
    def ended(self) -> bool:
        return self.state in ("FAILED", "CANCELLED", "NODE_FAIL", "COMPLETED", "TIMEOUT")


@dataclass
class Process:
    """An agent: one run of a job on one node."""

    task: int
    job: str
    node: str
    incarnation: int
    started: int
    epoch: int = 0
    peer: bytes | None = None
    broker: int = 0  # the epoch that it said hello to
    told: str = ""
    drained: int = 0  # when its drain is over, 0: it does not drain
    requeue: bool = False


class World:
    """tasks one-node tasks on `nodes` nodes; requeue: the site's policy."""

    def __init__(
        self,
        tasks: int,
        nodes: int,
        seed: int,
        *,
        requeue: bool = True,
        allowed: bool = True,
        limit: Callable[[Job], int] = lambda job: 0,
        wait: Callable[[], int] = lambda: 1,
        load: int = LOAD,
        walltime: Walltime | None = None,
    ) -> None:
        """allowed: the site really requeues; otherwise it says that it is disabled; limit: seconds that a run of a
        job may take, 0: no limit; wait: seconds that a submission waits in the queue when nodes are free."""
        self.random = random.Random(seed)
        self.deployment = Deployment(
            name="sim",
            model=Model(path="/m"),
            pool=(Pool(name="a", replicas=tasks, requeue=requeue),),
            recovery=RecoveryKeys(beat_seconds=BEAT),
            walltime=walltime or Walltime(),
        )
        self.limit, self.wait, self.load = limit, wait, load
        self.tasks, self.requeue, self.allowed = tasks, requeue and allowed, allowed
        self.now = 0
        self.nodes = [f"n{number}" for number in range(nodes)]
        self.dead: dict[str, int] = {}  # node -> when it died
        self.cut: dict[str, int] = {}  # node -> until when the broker does not hear it
        self.slurm_down_until = 0
        self.jobs: dict[str, Job] = {f"1_{task}": Job(f"1_{task}", task) for task in range(tasks)}
        self.arrays = 1
        self.processes: dict[str, Process] = {}  # by job
        self.incarnations: Counter[int] = Counter()
        self.peers = 0
        self.memory = Memory()
        self.epoch = 0
        self.table = m.FleetTable(0, 0, [])
        self.history: list[tuple[int, str, str]] = []  # (when, kind, task) of what the broker had Slurm do
        self.queries: list[tuple[int, int]] = []  # (epoch, when)
        self.breaches: list[str] = []
        self.under_way: list[tuple[int, Act]] = []
        self.superseded = False
        self.start_broker()

    # --- the broker ------------------------------------------------------------------------------------------

    def start_broker(self) -> None:
        """Kill the broker, whatever it was doing, and start the next one from what was journalled.

        Of what it was asking of Slurm, half still happens, and nobody hears how it went.
        """
        for _, act in self.under_way if self.epoch else []:
            if self.random.random() < 0.5:
                self.ask_slurm(act)
        self.epoch += 1
        memory = Memory()
        for record in self.memory.records(self.now):
            memory.apply(record)
        self.memory = memory
        self.fleet = Fleet(self.deployment, self.epoch, self.now, memory.carried(), memory.replaced)
        self.recovery = Recovery(self.deployment, memory, self.now, dice=self.random.random)
        self.succession = Succession(self.deployment, memory, self.now)
        self.known_heirs = {key: heir.job for key, heir in memory.heirs.items()}
        self.under_way = []
        self.answer: tuple[int, dict[str, JobRecord]] | None = None
        before = self.table.agents
        self.publish()
        if self.epoch > 1 and self.table.agents != before:
            self.breaches.append(f"{self.now}: the restarted broker began with another table")

    def act(self, actions: list[Any]) -> None:
        for action in actions:
            match action:
                case Changed():
                    self.memory.apply(Agent.of(action.view, action.route, self.now))
                case Up(view):
                    self.recovery.up(view.key, view.job, view.node)
                    self.succession.up(view, self.now)
                case Coming(view):
                    waited = self.succession.coming(view, self.now)
                    if waited is not None:
                        self.memory.apply(Sample(at=self.now, pool="a", what="wait", seconds=waited))
                case Lapsed(view):
                    self.succession.lapsed(view, self.now)
                case Loaded(view, seconds):
                    self.recovery.loaded(view.key)
                    self.succession.loaded("a", seconds)
                    self.memory.apply(Sample(at=self.now, pool="a", what="load", seconds=seconds))
                case Retired(key, job):
                    self.succession.retired(key, job, self.now)
                    self.memory.apply(Replaced(at=self.now, job=job))
                case Superseded():
                    self.superseded = True
                case Tell(peer, m.DrainAgent() as message):
                    for process in [p for p in self.processes.values() if p.peer == peer]:
                        self.drain(process, int(message.seconds), requeue=message.requeue)

    def publish(self) -> None:
        table = self.fleet.table()
        if table is None:
            return
        if table.epoch == self.table.epoch and table.version <= self.table.version:
            self.breaches.append(f"{self.now}: version {table.version} after {self.table.version}")
        self.table = table

    def broker_step(self) -> None:
        self.act(self.fleet.tick(self.now))
        if self.answer is not None and self.now > self.answer[0]:
            asked, records = self.answer
            self.answer = None
            self.recovery.placed("a", ["1"], records, self.now)
            self.recovery.answered(records, asked)
            self.succession.answered(records, asked, self.now)
            arrays = sorted({job.id.partition("_")[0] for job in self.jobs.values()}, key=int)
            self.succession.search({"a": arrays}, records, self.now)
        absent = list(self.fleet.absent())
        if self.recovery.query_due(self.now, bool(absent) or self.succession.curious):
            self.queries.append((self.epoch, self.now))
            if self.now >= self.slurm_down_until:
                self.answer = (self.now, {job.id: self.record(job) for job in self.jobs.values()})
        self.succeed(absent)
        for act in self.recovery.decide(absent, self.now, self.succession.all_heirs()):
            self.memory.apply(Begun(at=self.now, key=act.key, kind=act.kind, job=act.job))
            if act.suspect:
                self.memory.apply(Excluded(at=self.now, node=act.suspect, why=act.why))
            self.under_way.append((self.now + 1, act))
        for due, act in list(self.under_way):
            if self.now >= due:
                self.under_way.remove((due, act))
                self.perform(act)
        self.publish()

    def succeed(self, absent: list[AgentView]) -> None:
        for step in self.succession.decide(absent, set(), self.now):
            match step:
                case Promote(key, job, old):
                    self.recovery.promote(key, job, self.now)
                    self.memory.apply(Replaced(at=self.now, job=old))
                    self.memory.apply(Ended(at=self.now, key=key, kind="resubmit", job=job, error=""))
                case Succeed(key, why):
                    self.memory.apply(Heir(at=self.now, key=key, job=""))
                    self.under_way.append((self.now + 1, Act(key, "resubmit", HEIR, "", (), why)))
                case Cancel(key, job, why):
                    self.under_way.append((self.now + 1, Act(key, "cancel", HEIR + job, "", (), why)))
        heirs = self.succession.all_heirs()
        for key in self.known_heirs.keys() - heirs.keys():
            self.memory.apply(Heir(at=self.now, key=key, job="", over=True))
        for key, job in heirs.items():
            if self.known_heirs.get(key) != job:
                self.memory.apply(Heir(at=self.now, key=key, job=job))
        self.known_heirs = heirs

    def perform(self, act: Act) -> None:
        job, error = self.ask_slurm(act)
        if act.job.startswith(HEIR):
            if act.kind == "resubmit":
                self.history.append((self.now, "succeed", act.key))
                self.succession.submitted(act.key, job, error, self.now)
                self.memory.apply(Heir(at=self.now, key=act.key, job=job, over=bool(error)))
            return
        disabled = error == DISABLED
        if not error:
            self.history.append((self.now, act.kind, act.key))
        if self.recovery.done(act.key, act.kind, job, error, self.now, disabled=disabled):
            self.memory.apply(NoRequeue(at=self.now, pool="a", why=error))
        self.memory.apply(Ended(at=self.now, key=act.key, kind=act.kind, job=job, error=error))

    def ask_slurm(self, act: Act) -> tuple[str, str]:
        """(job, error)"""
        if self.now < self.slurm_down_until:
            return act.job, "Socket timed out"
        if act.kind == "resubmit":
            lives = 1 if act.job.startswith(HEIR) else 0
            return self.submit(int(act.key.rpartition("/")[2]), act.exclude, lives), ""
        if act.kind == "cancel":
            job = self.jobs[act.job.removeprefix(HEIR)]
            if not job.ended:
                self.end(job, "CANCELLED")
            return act.job, ""
        if not self.allowed:
            return act.job, DISABLED
        self.jobs[act.job].excluded |= set(act.exclude)
        self.requeue_job(self.jobs[act.job])
        return act.job, ""

    # --- Slurm -----------------------------------------------------------------------------------------------

    def record(self, job: Job) -> JobRecord:
        state: Any = {"PENDING": "requeued" if job.restarts else "pending", "RUNNING": "running"}.get(
            job.state, "failed"
        )
        if job.state == "COMPLETED":
            state = "completed"
        nodes, end = ((job.node,), float(job.end)) if job.state == "RUNNING" else ((), 0.0)
        return JobRecord(job.id, state, job.state, "", nodes, job.restarts, end)

    def submit(self, task: int, exclude: tuple[str, ...], lives: int = 0) -> str:
        living = [job.id for job in self.jobs.values() if job.task == task and not job.ended]
        if len(living) > lives:
            self.breaches.append(f"{self.now}: task {task} was submitted while {living} had not ended")
        self.arrays += 1
        job = Job(f"{self.arrays}_{task}", task, since=self.now, excluded=set(exclude), waits=self.wait())
        self.jobs[job.id] = job
        return job.id

    def requeue_job(self, job: Job) -> None:
        if job.state == "RUNNING":
            self.processes.pop(job.id, None)
            job.state, job.node, job.since = "PENDING", "", self.now
            job.restarts += 1

    def end(self, job: Job, state: str) -> None:
        self.processes.pop(job.id, None)
        job.state, job.node = state, ""

    def slurm_step(self) -> None:
        known_dead = {node for node, since in self.dead.items() if self.now - since >= DETECT}
        for job in self.jobs.values():
            if job.state == "RUNNING" and job.node in known_dead:
                if self.requeue:
                    self.requeue_job(job)
                else:
                    self.end(job, "NODE_FAIL")
        used = {job.node for job in self.jobs.values() if job.state == "RUNNING"}
        free = [node for node in self.nodes if node not in used and node not in known_dead]
        self.end_in_time()
        for job in self.jobs.values():
            if job.state == "PENDING" and self.now - job.since >= (RETURN if job.restarts else job.waits):
                node = next((node for node in free if node not in job.excluded), None)
                if node is None:
                    continue
                free.remove(node)
                job.state, job.node, job.since = "RUNNING", node, self.now
                limit = self.limit(job)
                job.end = self.now + limit if limit else 0
                job.warning = job.end - WARN - self.random.randint(0, 30) if limit else 0
                self.incarnations[job.task] += 1
                number = self.incarnations[job.task]
                self.processes[job.id] = Process(job.task, job.id, node, number, self.now)

    def end_in_time(self) -> None:
        for job in self.jobs.values():
            if job.state != "RUNNING" or not job.end:
                continue
            if self.now >= job.end:
                self.end(job, "TIMEOUT")
            elif self.now >= job.warning and job.id in self.processes:
                self.drain(self.processes[job.id], DRAIN, requeue=True)
                job.warning = job.end

    # --- agents ----------------------------------------------------------------------------------------------

    def drain(self, process: Process, seconds: int, *, requeue: bool) -> None:
        """What it runs takes some time, `seconds` at most. "End for good" wins over "run again"."""
        until = self.now + self.random.randint(0, max(0, seconds))
        process.requeue = requeue if not process.drained else process.requeue and requeue
        process.drained = min(process.drained or until, until) or 1

    def leave(self, process: Process) -> None:
        """Its drain is over."""
        job = self.jobs[process.job]
        if self.heard(process) and process.peer is not None and process.broker == self.epoch:
            self.act(self.fleet.gone(process.peer, m.AgentGone("drained", process.requeue), self.now))
        if self.processes.get(process.job) is not process:
            return
        if process.requeue and self.allowed and self.requeue:
            self.requeue_job(job)
        elif job.node == process.node:
            self.end(job, "COMPLETED")

    def heard(self, process: Process) -> bool:
        return process.node not in self.dead and self.now >= self.cut.get(process.node, 0)

    def state(self, process: Process) -> m.ReplicaState:
        ready = self.now - process.started >= BOOT + self.load
        phase: m.ReplicaPhase = "draining" if process.drained else "ready" if ready else "loading"
        return m.ReplicaState(process.task, process.incarnation, phase)

    def agents_step(self) -> None:
        for process in list(self.processes.values()):
            if process.drained and self.now >= process.drained and process.node not in self.dead:
                self.leave(process)
                continue
            if not self.heard(process) or self.now - process.started < BOOT:
                continue
            state = self.state(process)
            if process.broker != self.epoch:
                if process.broker and self.random.random() < 0.5:
                    continue  # reconnects with jitter
                self.peers += 1
                process.peer, process.broker = b"%d" % self.peers, self.epoch
                process.told = state.phase
                hello = m.AgentHello(
                    "a",
                    process.task,
                    process.incarnation,
                    process.node,
                    f"tcp://{process.node}:1",
                    process.job,
                    0,
                    process.epoch,
                    [state],
                    [],
                )
                process.epoch = self.epoch
                self.act(self.fleet.hello(process.peer, hello, self.now))
            elif process.peer is not None and (self.now + process.task) % int(BEAT) == 0:
                news = state.phase != process.told
                process.told = state.phase
                self.act(self.fleet.beat(process.peer, m.AgentBeat(0, [state] if news else []), self.now))
                key = f"a/{process.task}"
                if (
                    news
                    and state.phase == "draining"
                    and self.fleet.key_of(process.peer)
                    and self.succession.warn(key)
                ):
                    self.act(self.fleet.order(key, m.DrainAgent(self.epoch, DRAIN, "it has a successor")))

    # --- time ------------------------------------------------------------------------------------------------

    def step(self) -> None:
        self.now += 1
        self.slurm_step()
        self.agents_step()
        self.broker_step()

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.step()

    def routed(self) -> set[tuple[int, int]]:
        """(task, incarnation) that take traffic by the entries' table."""
        return {(agent.task, agent.incarnation) for agent in self.table.agents if agent.replicas}

    def serving(self) -> set[tuple[int, int]]:
        """(task, incarnation) that truly could."""
        return {
            (p.task, p.incarnation)
            for p in self.processes.values()
            if self.heard(p) and self.state(p).phase == "ready"
        }
