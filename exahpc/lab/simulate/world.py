"""Everything of one simulation, wired together: clients, entries, head, agents, Slurm, and what breaks."""

from __future__ import annotations

import gc
import random
from collections import Counter
from dataclasses import dataclass, replace

from exahpc.agent import events
from exahpc.deployment.spec import Deployment
from exahpc.errors import DeploymentError
from exahpc.lab.simulate.arrivals import arrivals
from exahpc.lab.simulate.cluster import Cluster, Job
from exahpc.lab.simulate.gateway import Gateway
from exahpc.lab.simulate.head import Head
from exahpc.lab.simulate.host import Host
from exahpc.lab.simulate.outcomes import Outcomes
from exahpc.lab.simulate.scenario import Rollout, Scenario
from exahpc.lab.simulate.steps import Place, Step
from exahpc.lab.simulate.timeline import Timeline
from exahpc.telemetry.meters import AgentMeter

WARNED_DRAIN, TERM_DRAIN = 60.0, 15.0
"""Seconds that an agent has after Slurm's warning, and after its TERM (`agent.main`)."""
AGAIN = 0.2
"""Seconds until a supervisor has started a dead agent again."""
LINK_LOST = 8.0
"""Seconds until the silence of a vanished node breaks a link (`wire.link`)."""


@dataclass(frozen=True)
class Sample:
    """The fleet at one moment. serving: replicas that truly could; routed: those that entries send to; in_flight,
    waiting: requests."""

    at: float
    serving: int
    routed: int
    in_flight: int
    waiting: int


class World:
    """A deployment under a scenario, from the moment at which all replicas serve."""

    def __init__(self, deployment: Deployment, scenario: Scenario) -> None:
        """Raises DeploymentError for a recording that cannot be read."""
        self.deployment, self.scenario = deployment, scenario
        self.timeline = Timeline()
        self.random = random.Random(scenario.seed)
        self.outcomes = Outcomes()
        self.measured = AgentMeter()
        """Of all agents: nobody here asks for those of one."""
        self.samples: list[Sample] = []
        self.serving = 0
        self.hosts: dict[str, Host] = {}
        """Living agent processes, by address."""
        self.assigned: dict[str, str] = {}
        """Versions that tasks load at their agents' next start; the others load the one in force."""
        self.in_force = ""
        self.deployments: dict[str, Deployment] = {"": deployment}
        self.versions: dict[str, Rollout] = {"": Rollout(at=0.0)}
        """How good they are."""
        self._running: dict[str, Host] = {}  # by job
        self._steps: dict[str, list[Step]] = {}  # by job, of an agent that was killed
        self._incarnations: Counter[str | int] = Counter()
        self._begun = False
        self.gateways: list[Gateway] = []
        self.entries = scenario.machine.entries or deployment.head.entries
        self.cluster = Cluster(self.timeline, scenario.machine, deployment, self, random.Random(scenario.seed + 1))
        self.head = Head(self)
        for number in range(self.entries):
            self.gateways.append(Gateway(self, number))
        for pool in deployment.pool:
            self.head.slurm.begun(pool.name, self.cluster.begin(pool))
        self._begun = True
        self.timeline.run(1.0)
        self._arrivals = arrivals(scenario.arrivals, deployment.wanted_replicas, random.Random(scenario.seed + 2))
        self.start = self.timeline.now

    # --- time ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """All of it. Garbage collection is off meanwhile: nothing here refers to itself, and there is a lot."""
        scenario, timeline = self.scenario, self.timeline
        self.timeline.every(1.0, self._sample)
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            end = self.start + scenario.warm + scenario.seconds
            gateways, draw, count = self.gateways, self.random.random, len(self.gateways)
            for arrival in self._arrivals:
                at = self.start + arrival.at
                if at >= end:
                    break
                timeline.run(at)
                gateways[int(draw() * count)].open(arrival)
            timeline.run(end)
            timeline.run(end + scenario.slo.deadline)  # what is under way ends
            for gateway in gateways:
                gateway.close()
        finally:
            gc.enable()
            gc.unfreeze()

    def _sample(self) -> None:
        routed = sum(len(agent.replicas) for agent in self.head.fleet.current().agents)
        in_flight = sum(gateway.desk.in_flight for gateway in self.gateways)
        waiting = sum(gateway.desk.waiting for gateway in self.gateways)
        self.samples.append(Sample(self.timeline.now, self.serving, routed, in_flight, waiting))

    def limit(self, job: Job, seconds: float) -> None:
        """Its time limit is so far away from now on, and its agent knows."""
        self.cluster.limit(job, seconds)
        host = self._running.get(job.id)
        if host is not None:
            host.place = replace(host.place, until=job.until)
            host.greet()

    def roll_out(self, fault: Rollout) -> str:
        """Begin a rollout of a version that is as good or bad as the fault says."""
        version = f"v{len(self.versions) + 1}"
        self.versions[version] = fault
        self.deployments[version] = self.deployment
        try:
            self.head.roll_out(version)
        except DeploymentError as error:
            return f"{version} cannot be rolled out: {error}"
        return f"{version} is rolled out"

    # --- what parts ask for ----------------------------------------------------------------------------------

    def next_incarnation(self, of: str | int) -> int:
        """Of an agent (by task) or a replica (by slot)."""
        self._incarnations[of] += 1
        return self._incarnations[of]

    def speed(self) -> float:
        """How many times as long as usual a new replica takes."""
        return max(0.5, self.random.gauss(1.0, self.scenario.machine.spread))

    def load_seconds(self) -> float:
        return self.scenario.machine.load_seconds * self.random.uniform(0.8, 1.2)

    # --- Slurm's doings --------------------------------------------------------------------------------------

    def job_started(self, job: Job) -> None:
        if self._begun:
            self.timeline.after(self.scenario.machine.boot_seconds, self._boot, job, job.run)
            return
        slots = job.pool.slots_of_task(job.task)
        self._host(job, [Step(slot, self.next_incarnation(slot), self.speed(), ready=True) for slot in slots])

    def job_warned(self, job: Job) -> None:
        host = self._running.get(job.id)
        if host is not None:
            host.drain(WARNED_DRAIN, "Slurm's warning before the end", requeue=True)

    def job_told_to_end(self, job: Job) -> None:
        host = self._running.get(job.id)
        if host is not None:
            host.drain(TERM_DRAIN, "told to end (SIGTERM)", requeue=False)

    def job_killed(self, job: Job) -> None:
        self._forget(job)

    def node_lost(self, job: Job) -> None:
        host = self._running.pop(job.id, None)
        if host is not None:
            self.hosts.pop(host.address, None)
            host.vanished(LINK_LOST)
        self._steps.pop(job.id, None)

    def ended(self, host: Host, finish: events.Finish) -> None:
        """An agent ended by itself: with 0 and 75 its job ends, with any other code it is started again."""
        self.hosts.pop(host.address, None)
        job = self.cluster.jobs[host.place.job]
        if self._running.get(job.id) is not host:
            return
        del self._running[job.id]
        if finish.code in (0, 75):
            self.cluster.ended(job, finish.code)
        else:
            self.timeline.after(AGAIN, self._boot, job, job.run)

    def kill_agent(self, host: Host) -> None:
        """Its steps live on; the supervisor starts another agent, which adopts them."""
        self.hosts.pop(host.address, None)
        host.killed()
        job = self.cluster.jobs[host.place.job]
        self._running.pop(job.id, None)
        self._steps[job.id] = [step for step in host.steps.values() if not step.ended]
        self.timeline.after(AGAIN, self._boot, job, job.run)

    def _forget(self, job: Job) -> None:
        host = self._running.pop(job.id, None)
        self._steps.pop(job.id, None)
        if host is not None:
            self.hosts.pop(host.address, None)
            for step in host.steps.values():
                step.ended = True
            host.killed()

    def _boot(self, job: Job, run: int) -> None:
        if job.run == run and job.state == "RUNNING" and job.node.down is None and job.id not in self._running:
            self._host(job, self._steps.pop(job.id, []))

    def _host(self, job: Job, steps: list[Step]) -> None:
        place = Place(job.pool, job.task, job.id, job.node.name, job.until, job.restarts)
        host = Host(self, place, self.assigned.get(place.key, self.in_force), steps)
        self.hosts[host.address] = host
        self._running[job.id] = host
