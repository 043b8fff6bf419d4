"""Whatever happens: one rollout at a time, which ends, and nobody stays at a version that was given up."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from exahpc.broker.moving import AWAY_SECONDS
from exahpc.deployment.policy import Rollout as Gates
from exahpc.errors import DeploymentError
from exahpc.wire.messages import RolloutCommand
from tests.unit.broker.rolled import World

GATES = Gates(canary=0.2, samples=20, seconds=150.0, drain_seconds=10.0, step=0.4, switch=0.5)


class Machine(RuleBasedStateMachine):
    world: World

    @initialize(count=st.integers(1, 7))
    def begin(self, count: int) -> None:
        self.world = World(count, GATES)
        self.labels = 0

    @rule(kind=st.sampled_from(["good", "good", "never ready", "failing"]), again=st.booleans())
    def start(self, kind: str, again: bool) -> None:
        world, state = self.world, self.world.rollout.state
        label = state.old if again and state.old != state.current else f"v{self.labels + 1}"
        if state.changing or not any(task.ready for task in world.tasks()):
            with pytest.raises(DeploymentError):
                world.start(label)
            assert world.rollout.state is state
            return
        self.labels += 1
        if kind == "never ready":
            world.never_ready.add(label)
        elif kind == "failing":
            world.failing.add(label)
        world.start(label)

    @rule(command=st.sampled_from(["promote", "abort", "rollback"]))
    def command(self, command: str) -> None:
        world, phase = self.world, self.world.rollout.state.phase
        allowed = phase == "done" if command == "rollback" else phase in ("canary", "judging", "widening")
        message = RolloutCommand(command)  # type: ignore[arg-type]
        if allowed:
            world.act(world.rollout.command(message, world.now))
            return
        with pytest.raises(DeploymentError):
            world.rollout.command(message, world.now)

    @rule(seconds=st.integers(1, 100), busy=st.booleans())
    def wait(self, seconds: int, busy: bool) -> None:
        self.world.run(seconds, busy=busy)

    @rule(which=st.integers(0, 6), seconds=st.integers(1, 300))
    def crash(self, which: int, seconds: int) -> None:
        agents = list(self.world.agents.values())
        agent = agents[which % len(agents)]
        agent.alive, agent.left = False, float(seconds)

    @rule()
    def restart_the_broker(self) -> None:
        self.world.restart_the_broker()

    @rule(lossy=st.booleans())
    def links(self, lossy: bool) -> None:
        self.world.lossy = lossy

    @invariant()
    def shares_are_a_whole(self) -> None:
        shares = self.world.rollout.shares
        assert all(0.0 <= share.share <= 1.0 for share in shares)
        assert not shares or abs(sum(share.share for share in shares) - 1.0) < 1e-9
        assert len({share.version for share in shares}) == len(shares)

    @invariant()
    def what_is_wanted_is_one_of_two(self) -> None:
        state, keys = self.world.rollout.state, set(self.world.agents)
        assert set(state.tasks) <= keys
        if not state.changing:
            assert {state.wanted(key) for key in keys} == {state.current}

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        world.lossy = False
        for _ in range(8 * (len(world.agents) + 2)):
            if not world.rollout.state.changing:
                break
            world.run(AWAY_SECONDS)
        state = world.rollout.state
        assert not state.changing, f"it does not end: {state}"
        world.run(320)  # whoever crashed is back
        assert world.versions() == {state.current}
        assert {agent.file for agent in world.agents.values()} == {state.current}
        assert world.rollout.shares == []
        assert world.in_force == state.current


TestRollout = Machine.TestCase
TestRollout.settings = settings(
    max_examples=60, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
