"""Small versions of the scenarios of `exahpc simulate`: what must hold of the fleet under load and faults.

The bars at 3,072 replicas are measured by bench/simulate_3072.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from exahpc.broker.limits import Limits
from exahpc.lab.simulate.faults import Faults
from exahpc.lab.simulate.presets import SCENARIOS, reference
from exahpc.lab.simulate.report import Report, report
from exahpc.lab.simulate.run import simulate
from exahpc.lab.simulate.scenario import Request, Scenario
from exahpc.lab.simulate.world import World

NODES = 10


def preset(name: str, rate: float, **changes: Any) -> Scenario:
    """A preset with another rate a replica."""
    scenario = SCENARIOS[name]
    arrivals = msgspec.structs.replace(scenario.arrivals, rate_per_replica=rate, rate=None)
    return msgspec.structs.replace(scenario, arrivals=arrivals, **changes)


def run(scenario: Scenario, nodes: int = NODES) -> Report:
    return simulate(reference(scenario, nodes), scenario)


def worst(found: Report, first: float, last: float) -> float:
    """The highest P99 to the first token of the windows in [first, last)."""
    return max(w.first_token.p99 for w in found.windows if first <= w.at < last and w.requests)


_SCRIPT = """
import sys
from exahpc.lab.simulate.presets import SCENARIOS, reference
from exahpc.lab.simulate.report import encoded
from exahpc.lab.simulate.run import simulate
import msgspec
s = msgspec.structs.replace(SCENARIOS["mishaps"], seconds=100.0, seed=int(sys.argv[1]))
s = msgspec.structs.replace(s, arrivals=msgspec.structs.replace(s.arrivals, rate_per_replica=0.3))
sys.stdout.buffer.write(encoded(simulate(reference(s, 4), s)))
"""


def test_the_same_seed_gives_the_same_bytes_in_any_process() -> None:
    def made(seed: int, hashes: str) -> bytes:
        environment = {**os.environ, "PYTHONHASHSEED": hashes}
        command = [sys.executable, "-c", _SCRIPT, str(seed)]
        return subprocess.run(command, env=environment, check=True, capture_output=True).stdout

    first = made(1, "1")
    assert first == made(1, "2")
    assert first != made(2, "1")


def test_every_request_has_exactly_one_ending_whatever_breaks() -> None:
    scenario = preset("mishaps", 1.0, seed=3, seconds=120.0)
    world = World(reference(scenario, 4), scenario)
    faults = Faults(world)
    world.run()
    assert len(world.outcomes) == world.outcomes.opened
    found = report(world, faults.notes)
    assert found.all.done == found.all.requests
    assert found.all.moved > 0
    for gateway in world.gateways:
        assert not gateway.desk.ledger.records
        for agent in gateway.desk.router.agents.values():
            assert [(r.tokens, r.sequences) for r in agent.replicas.values() if r.sequences or r.tokens] == []
    for host in world.hosts.values():
        for replica in host.relay.replicas.values():
            assert (len(replica.batch), replica.batch.outstanding, replica.capacity.running) == (0, 0, {})


def test_without_faults_latencies_are_the_reference_load() -> None:
    found = run(preset("steady", 110 / 12, seconds=10.0, warm=5.0), 4)
    assert found.all.first_token.p50 == pytest.approx(0.054, rel=0.1)
    assert found.all.between.p50 == pytest.approx(0.024, rel=0.1)
    assert (found.all.late, found.ejections, found.rebuilds, found.least_serving) == (0, 0, 0, 1.0)


def test_more_than_the_fleet_can_take_is_refused_not_forgotten() -> None:
    scenario = preset("steady", 50.0, seconds=8.0, warm=0.0)
    deployment = reference(scenario, 1)
    limits = msgspec.structs.replace(deployment.limits, queue_seconds=3.0, max_waiting=100)
    found = simulate(msgspec.structs.replace(deployment, limits=limits), scenario)
    assert found.all.refused + found.all.no_room > 0
    everything = found.all.done + found.all.failed + found.all.refused + found.all.no_room + found.all.open
    assert everything == found.all.requests


def test_a_switch_that_fails_starts_no_stampede_and_hurts_nobody_else() -> None:
    found = run(preset("switch", 0.7, seconds=170.0))
    assert found.all.done == found.all.requests
    assert found.undisturbed.first_token.p99 < 1.2 * max(worst(found, 0, 20), 0.08)
    burst = Limits.of_fleet(NODES).burst
    assert 0 < len(found.deeds) <= burst
    assert found.least_serving < 1.0


def test_replicas_that_look_alive_are_out_within_13_seconds() -> None:
    found = run(preset("fake-alive", 1.0))
    at = found.faults[0].at
    out = {d.what.split(":")[0]: d.at for d in found.decisions if "-> restarting" in d.what}
    assert len(out) == round(0.05 * 12 * NODES)
    assert max(out.values()) <= at + 13
    assert found.all.late == 0


def test_a_hot_replica_loses_its_traffic_and_nobody_else_does() -> None:
    found = run(preset("hot", 1.5, seconds=60.0), 5)
    tripped = {d.what.split(":")[0] for d in found.decisions if "-> tripped" in d.what}
    assert len(tripped) == 1
    assert found.all.late == 0


def test_long_prompts_do_not_hold_up_short_ones() -> None:
    scenario = preset("long-prompts", 1.0, seconds=30.0)
    arrivals = msgspec.structs.replace(scenario.arrivals, mix=(Request(),))
    without = msgspec.structs.replace(scenario, arrivals=arrivals)
    deployment = reference(scenario, NODES)
    mixed, plain = simulate(deployment, scenario), simulate(deployment, without)
    assert mixed.long.requests > 20
    assert mixed.short.first_token.p99 < 1.2 * plain.short.first_token.p99


def test_a_rollout_under_load_fails_nothing() -> None:
    found = run(preset("rollout", 0.3, seconds=450.0), 6)
    assert found.all.done == found.all.requests
    assert any("is done" in decision.what for decision in found.decisions)
    assert found.windows[-1].serving == 1.0


def test_a_bad_version_goes_back_before_many_meet_it() -> None:
    found = run(preset("bad-version", 0.5, seconds=200.0))
    assert any("is reverting" in decision.what for decision in found.decisions)
    assert 0 < found.versions["v2"] < 0.02 * found.all.requests
    assert found.all.done == found.all.requests
    assert found.windows[-1].serving == 1.0


def test_replicas_that_nobody_needs_go_and_the_first_requests_bring_them_back() -> None:
    """DESIGN: to zero and back on the first request, which is held and not refused."""
    found = run(preset("to-zero", 0.6, seconds=1500.0), nodes=2)
    assert found.all.done == found.all.requests > 0
    by_time = {w.at: w.serving for w in found.windows}
    assert {share for at, share in by_time.items() if at < 300} == {0.5}, "`up` starts one task"
    assert {share for at, share in by_time.items() if 600 <= at < 890} == {0.0}
    assert {share for at, share in by_time.items() if 1000 <= at < 1080} == {1.0}, "what waited needed both"
    assert by_time[max(by_time)] == 0.0
    assert 20 < worst(found, 885, 960) < SCENARIOS["to-zero"].slo.first_token
