"""A virtual supercomputer around the broker's real decision code: Slurm, nodes and agents by a virtual clock.

One step is one second. Nothing here decides anything that the product decides: it only obeys, breaks, and notes.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from exahpc.broker.fleet import Fleet
from exahpc.broker.memory import Agent, Begun, Ended, Excluded, Memory, NoRequeue
from exahpc.broker.recovery import Act, Recovery
from exahpc.broker.values import Changed, Superseded, Tell, Up
from exahpc.deployment.spec import Deployment, Model, Pool
from exahpc.deployment.spec import Recovery as RecoveryKeys
from exahpc.slurm.api import JobRecord
from exahpc.wire import messages as m

BEAT = 2.0
DETECT = 26  # seconds until Slurm itself notices a dead node
RETURN = 7  # seconds from requeued to running again, on a free node
BOOT = 5  # seconds from a job's start to its agent's hello
DISABLED = "Requested operation is presently disabled"
LOAD = 20  # seconds from there to a ready replica


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

    @property
    def ended(self) -> bool:
        return self.state in ("FAILED", "CANCELLED", "NODE_FAIL")


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
    told_ready: bool = False


class World:
    """tasks one-node tasks on `nodes` nodes; requeue: the site's policy."""

    def __init__(self, tasks: int, nodes: int, seed: int, *, requeue: bool = True, allowed: bool = True) -> None:
        """allowed: the site really requeues; otherwise it says that it is disabled."""
        self.random = random.Random(seed)
        self.deployment = Deployment(
            name="sim",
            model=Model(path="/m"),
            pool=(Pool(name="a", replicas=tasks, requeue=requeue),),
            recovery=RecoveryKeys(beat_seconds=BEAT),
        )
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
        self.fleet = Fleet(self.deployment, self.epoch, self.now, memory.carried())
        self.recovery = Recovery(self.deployment, memory, self.now)
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
                case Up():
                    self.recovery.up(action.view.key, action.view.job)
                case Superseded():
                    self.superseded = True
                case Tell(_, m.DrainAgent()):
                    stale = [job for job, p in self.processes.items() if p.peer == action.peer]
                    for job in stale:
                        del self.processes[job]

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
            self.recovery.placed("a", ["1"], records)
            self.recovery.answered(records, asked)
        absent = list(self.fleet.absent())
        if self.recovery.query_due(self.now, bool(absent)):
            self.queries.append((self.epoch, self.now))
            if self.now >= self.slurm_down_until:
                self.answer = (self.now, {job.id: self.record(job) for job in self.jobs.values()})
        for act in self.recovery.decide(absent, self.now):
            self.memory.apply(Begun(at=self.now, key=act.key, kind=act.kind, job=act.job))
            if act.suspect:
                self.memory.apply(Excluded(at=self.now, node=act.suspect, why=act.why))
            self.under_way.append((self.now + 1, act))
        for due, act in list(self.under_way):
            if self.now >= due:
                self.under_way.remove((due, act))
                self.perform(act)
        self.publish()

    def perform(self, act: Act) -> None:
        job, error = self.ask_slurm(act)
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
            return self.submit(int(act.key.rpartition("/")[2]), act.exclude), ""
        if act.kind == "cancel":
            self.end(self.jobs[act.job], "CANCELLED")
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
        nodes = (job.node,) if job.state == "RUNNING" else ()
        return JobRecord(job.id, state, job.state, "", nodes, job.restarts)

    def submit(self, task: int, exclude: tuple[str, ...]) -> str:
        living = [job.id for job in self.jobs.values() if job.task == task and not job.ended]
        if living:
            self.breaches.append(f"{self.now}: task {task} was submitted while {living} had not ended")
        self.arrays += 1
        job = Job(f"{self.arrays}_{task}", task, since=self.now, excluded=set(exclude))
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
        for job in self.jobs.values():
            if job.state == "PENDING" and self.now - job.since >= (RETURN if job.restarts else 1):
                node = next((node for node in free if node not in job.excluded), None)
                if node is None:
                    continue
                free.remove(node)
                job.state, job.node, job.since = "RUNNING", node, self.now
                self.incarnations[job.task] += 1
                number = self.incarnations[job.task]
                self.processes[job.id] = Process(job.task, job.id, node, number, self.now)

    # --- agents ----------------------------------------------------------------------------------------------

    def heard(self, process: Process) -> bool:
        return process.node not in self.dead and self.now >= self.cut.get(process.node, 0)

    def state(self, process: Process) -> m.ReplicaState:
        ready = self.now - process.started >= BOOT + LOAD
        return m.ReplicaState(process.task, process.incarnation, "ready" if ready else "loading")

    def agents_step(self) -> None:
        for process in list(self.processes.values()):
            if not self.heard(process) or self.now - process.started < BOOT:
                continue
            state = self.state(process)
            if process.broker != self.epoch:
                if process.broker and self.random.random() < 0.5:
                    continue  # reconnects with jitter
                self.peers += 1
                process.peer, process.broker = b"%d" % self.peers, self.epoch
                process.told_ready = state.phase == "ready"
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
                news = state.phase == "ready" and not process.told_ready
                process.told_ready = process.told_ready or news
                self.act(self.fleet.beat(process.peer, m.AgentBeat(0, [state] if news else []), self.now))

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
