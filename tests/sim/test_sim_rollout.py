"""Rollouts in the simulator, under load: the real decisions of entries, broker and agents."""

from __future__ import annotations

import msgspec
import pytest

from exahpc.lab.simulate.presets import SCENARIOS, reference
from exahpc.lab.simulate.report import Report
from exahpc.lab.simulate.run import simulate
from exahpc.lab.simulate.scenario import AgentKilled, AnyFault, BrokerRestart, Rollout


def run(*faults: AnyFault, seconds: float, rate: float = 0.4, nodes: int = 8) -> Report:
    preset = SCENARIOS["rollout"]
    arrivals = msgspec.structs.replace(preset.arrivals, rate_per_replica=rate, rate=None)
    scenario = msgspec.structs.replace(preset, arrivals=arrivals, fault=faults, seconds=seconds)
    return simulate(reference(scenario, nodes), scenario)


def phases(found: Report) -> list[str]:
    told = [decision.what.partition(" to v2 is ")[2] for decision in found.decisions]
    return [words.partition(":")[0] for words in told if words]


@pytest.mark.parametrize(
    "bad", [Rollout(at=20.0, odd=0.5), Rollout(at=20.0, times=3.0)], ids=["senseless", "slow"]
)
def test_a_version_that_is_no_good_goes_back_before_many_meet_it(bad: Rollout) -> None:
    found = run(bad, seconds=300.0)
    assert "widening" not in phases(found)
    assert phases(found)[-2:] == ["reverting", "reverted"]
    assert found.all.done == found.all.requests
    assert found.windows[-1].serving == 1.0
    # the canary is one task of eight here; of 256 it is one in twenty
    assert found.versions["v2"] < 0.02 * found.all.requests


def test_a_good_version_survives_a_new_broker_and_lost_agents() -> None:
    found = run(
        Rollout(at=20.0),
        AgentKilled(at=80.0, count=2),
        BrokerRestart(at=120.0),
        AgentKilled(at=160.0),
        seconds=560.0,
    )
    assert phases(found) == ["canary", "judging", "widening", "done"]
    assert found.all.done == found.all.requests
    assert found.windows[-1].serving == 1.0
