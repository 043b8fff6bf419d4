"""A batch on a virtual fleet: nobody idles while others have rows to begin; the slow do not decide its end."""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field

import pytest

from exahpc.batch.book import Book
from exahpc.batch.commits import Commit
from exahpc.batch.intervals import ranges_of
from exahpc.broker.lease_actions import Action, Grant, Log, Revoke
from exahpc.broker.leases import Leases
from exahpc.wire.messages import LeaseProgress


@dataclass
class Agent:
    """Runs up to `places` rows at once, each `slowness` times as long as it should take."""

    name: str
    places: int
    slowness: float = 1.0
    waiting: deque[tuple[int, int]] = field(default_factory=deque)
    running: dict[tuple[int, int], float] = field(default_factory=dict)

    @property
    def wanted(self) -> int:
        """As agents ask: about half of what runs is held ready."""
        free = self.places - len(self.running)
        target = free + (len(self.running) + free + 1) // 2
        return target - len(self.waiting) if 2 * len(self.waiting) < target else 0


class Fleet:
    def __init__(self, agents: list[Agent], seconds: list[float]) -> None:
        self.agents = {agent.name: agent for agent in agents}
        self.seconds, self.now, self.begun = seconds, 0.0, Counter[int]()
        self.committed = Counter[int]()
        self.leases, self.book = Leases(1), Book(len(seconds), [])
        self.leases.open("x", self.book, 1, 0.0)

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Grant(agent, _, lease, first, last):
                    self.agents[agent].waiting += [(lease, row) for row in range(first, last)]
                case Revoke(agent, lease, soft):
                    self.revoked(self.agents[agent], lease, soft)
                case Log(_, Commit(rows=rows)):
                    self.committed.update(row for first, last in rows for row in range(first, last))

    def revoked(self, agent: Agent, lease: int, soft: bool) -> None:
        back = [row for number, row in agent.waiting if number == lease]
        agent.waiting = deque(key for key in agent.waiting if key[0] != lease)
        if not soft:
            agent.running = {key: end for key, end in agent.running.items() if key[0] != lease}
            return
        over = not any(number == lease for number, _ in agent.running)
        self.tell(agent, lease, [], back, over=over)

    def tell(self, agent: Agent, lease: int, done: list[int], back: list[int], *, over: bool) -> None:
        rows, returned = ranges_of(done), ranges_of(back)
        told = LeaseProgress(lease, "x", "j", 8, 99, len(done), 0, over, rows, [], returned)
        self.perform(self.leases.progress(agent.name, told, self.now))

    def step(self) -> None:
        """One second."""
        self.now += 1.0
        for agent in self.agents.values():
            for key in [key for key, end in agent.running.items() if end <= self.now]:
                if agent.running.pop(key, None) is None:
                    continue
                lease, row = key
                left = any(number == lease for number, _ in (*agent.running, *agent.waiting))
                self.tell(agent, lease, [row], [], over=not left)
            if agent.wanted:
                self.perform(self.leases.want(agent.name, agent.wanted, self.now))
            while agent.waiting and len(agent.running) < agent.places:
                key = agent.waiting.popleft()
                self.begun[key[1]] += 1
                agent.running[key] = self.now + self.seconds[key[1]] * agent.slowness
        self.perform(self.leases.tick(self.now))

    def run(self) -> float:
        """Seconds until all is done."""
        for _ in range(20_000):
            if self.book.done:
                assert set(self.committed.values()) == {1}
                return self.now
            self.step()
        raise AssertionError(f"no end: {self.book.leases}")


def durations(rows: int, seed: int) -> list[float]:
    """Most rows are short, some are long."""
    dice = random.Random(seed)
    return [min(60.0, 2.0 + dice.expovariate(1 / 6)) for _ in range(rows)]


@pytest.mark.parametrize("seed", range(3))
def test_agents_of_all_sizes_end_together(seed: int) -> None:
    agents = [Agent(f"a/{n}", 4 if n % 3 else 24) for n in range(24)]
    seconds = durations(4000, seed)
    fleet = Fleet(agents, seconds)
    ideal = sum(seconds) / sum(agent.places for agent in agents)
    assert fleet.run() < 1.15 * ideal + max(seconds)
    assert sum(fleet.begun.values()) < 1.05 * len(seconds)


@pytest.mark.parametrize("seed", range(3))
def test_one_agent_that_crawls_does_not_hold_up_the_end(seed: int) -> None:
    agents = [Agent(f"a/{n}", 8, slowness=40.0 if n == 5 else 1.0) for n in range(12)]
    seconds = durations(1500, seed)
    fleet = Fleet(agents, seconds)
    ideal = sum(seconds) / (8 * 11)
    assert fleet.run() < 1.2 * ideal + 120.0 + max(seconds), "without second leases it takes about 40 x 60 s"
    assert max(fleet.begun.values()) <= 3


def test_agents_that_come_late_get_rows_that_others_have_not_begun() -> None:
    early, late = Agent("a/0", 40), Agent("a/1", 40)
    fleet = Fleet([early], [30.0] * 60)
    while fleet.book.pending:  # when nobody else was there
        fleet.perform(fleet.leases.want("a/0", 60, 0.0))
    fleet.step()
    fleet.agents["a/1"] = late
    assert len(early.waiting) == 20
    assert fleet.run() < fleet.seconds[0] + 15.0
    assert max(fleet.begun.values()) == 1
