"""A fleet whose agents obey a rollout: they drain, start again, and load what the folder says."""

from __future__ import annotations

from dataclasses import dataclass, field

from exahpc.broker.memory import Memory
from exahpc.broker.memory import Rollout as Record
from exahpc.broker.moving import Task
from exahpc.broker.rollout import Rollout
from exahpc.broker.values import AgentView, FleetAction, InForce, JobWord, RolloutMoved, Switch
from exahpc.broker.versions import RolloutState
from exahpc.deployment.policy import Rollout as Gates
from exahpc.wire.messages import ReplicaPhase, ReplicaState, Service, Share

SEQUENCES = 8
HEADROOM = 0.1


@dataclass
class Agent:
    """One task with one replica. file: what it loads next; left: seconds to its next phase; job: Slurm's word."""

    file: str = ""
    version: str = ""
    phase: ReplicaPhase = "ready"
    alive: bool = True
    left: float = 0.0
    incarnation: int = 1
    job: JobWord = field(default_factory=JobWord)
    running: int = 0
    service: Service = field(default_factory=Service)

    @property
    def serves(self) -> bool:
        return self.alive and self.phase == "ready"

    def drain(self) -> None:
        self.phase, self.left = "draining", 4.0

    def second(self, never_ready: set[str]) -> bool:
        """True when it has just said hello."""
        self.left -= 1
        if self.left > 0 or self.serves:
            return False
        if not self.alive:
            self.alive, self.version, self.phase, self.left = True, self.file, "loading", 5.0
            self.incarnation, self.service = self.incarnation + 1, Service()
            return True
        if self.phase == "draining":
            self.alive, self.left = False, 3.0
        elif self.version not in never_ready:
            self.phase = "ready"
        return False


class World:
    """never_ready, failing: versions that are; lossy: no agent hears what it is told."""

    def __init__(self, count: int, gates: Gates) -> None:
        self.now = 1000.0
        self.gates = gates
        self.agents = {f"{'ab'[number % 2]}/{number // 2}": Agent() for number in range(count)}
        self.never_ready: set[str] = set()
        self.failing: set[str] = set()
        self.lossy = False
        self.waiting = 0
        self.rollout = Rollout(RolloutState(), gates, HEADROOM)
        self.journal: list[RolloutState] = []
        self.in_force = ""
        self.switches: list[list[str]] = []
        """Keys that were switched at once."""
        self.drains: list[float] = []
        self.shares: list[list[Share]] = []

    def tasks(self) -> list[Task]:
        return [
            Task(key, key[0], agent.version, agent.alive, 1, SEQUENCES, self._replicas(agent), agent.job)
            for key, agent in self.agents.items()
        ]

    @staticmethod
    def _replicas(agent: Agent) -> tuple[ReplicaState, ...]:
        state = ReplicaState(0, agent.incarnation, agent.phase, running=agent.running, service=agent.service)
        return (state,) if agent.alive else ()

    def act(self, actions: list[FleetAction]) -> None:
        state = self.rollout.state
        switches = [action for action in actions if isinstance(action, Switch)]
        for action in actions:
            match action:
                case RolloutMoved():
                    self.journal.append(action.state)
                case InForce():
                    self.in_force = action.version
                case Switch():
                    assert action.version == state.wanted(action.key)
                    agent = self.agents[action.key]
                    agent.file = action.version
                    if agent.alive and agent.version != action.version and not self.lossy:
                        agent.drain()
        if switches:
            self.switches.append([action.key for action in switches])
            self.drains.append(max(action.seconds for action in switches))
            assert not state.changing or self.journal[-1] == state, "a switch that no new broker would know of"
        if not self.shares or self.shares[-1] != self.rollout.shares:
            self.shares.append(self.rollout.shares)

    def start(self, version: str) -> None:
        """Raises DeploymentError."""
        self.act(self.rollout.start(version, self.gates, self.tasks(), self.now))

    def run(self, seconds: float, *, busy: bool = True) -> None:
        """busy: every ready replica ends one request a second."""
        for _ in range(int(seconds)):
            self.now += 1
            for key, agent in self.agents.items():
                if busy and agent.serves:
                    had, failed = agent.service, agent.version in self.failing
                    agent.service = Service(had.served + (not failed), had.failed + failed, had.odd)
                if agent.second(self.never_ready):
                    self.rollout.up(AgentView(key, key[0], 0, "alive", self.now, version=agent.version))
            self.act(self.rollout.tick(self.tasks, self.waiting, self.now))

    def until(self, *phases: str, seconds: int = 2000) -> None:
        for _ in range(seconds):
            if self.rollout.state.phase in phases:
                return
            self.run(1)
        raise AssertionError(f"still {self.rollout.state} after {seconds} s")

    def versions(self) -> set[str]:
        return {agent.version for agent in self.agents.values() if agent.alive}

    def restart_the_broker(self) -> None:
        memory, again = Memory(), Memory()
        for state in self.journal:
            memory.apply(Record(at=self.now, state=state))
        for record in memory.records(self.now):
            again.apply(record)
        state = again.rollout.state if again.rollout else RolloutState(old=self.in_force)
        self.rollout = Rollout(state, self.gates, HEADROOM)
