"""Scenario files: good ones are read, bad ones are told by key, value and remedy."""

from __future__ import annotations

import random
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from exahpc.errors import DeploymentError
from exahpc.lab.simulate.arrivals import Arrival, arrivals
from exahpc.lab.simulate.presets import SCENARIOS, reference
from exahpc.lab.simulate.scenario import Arrivals, Request, Scenario, SwitchDown, Wait, check_size, load, parsed

WHOLE = """
name = "mine"
seconds = 300
arrivals.rate = 12.5
arrivals.mix = [{share = 98}, {share = 2, prompt = 32768, new = 16}]
machine.queue = {median = 60, p90 = 600}
slo.deadline = 20

[[fault]]
kind = "switch-down"
at = 60
count = 2
"""


def test_a_file_gives_what_it_says_and_defaults_for_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(WHOLE)
    found = load(path)
    assert found.arrivals.mix == (Request(share=98), Request(share=2, prompt=32768, new=16))
    assert found.machine.queue == Wait(median=60, p90=600)
    assert found.fault == (SwitchDown(at=60, count=2),)
    assert found.warm == Scenario().warm
    as_json = tmp_path / "mine.json"
    as_json.write_bytes(msgspec.json.encode(found))
    assert load(as_json) == found


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"secods": 5}, "unknown field `secods`"),
        ({"seconds": "long"}, r'seconds = "long": Expected `float`'),
        ({"seconds": 0}, "seconds = 0: Expected `float` > 0"),
        ({"seconds": float("inf")}, "seconds = Infinity: Expected `float` <= "),
        ({"replica": {"base_seconds": 0}}, r"replica\.base_seconds = 0: Expected `float` > 0"),
        ({"replica": {"prompt_rate": 0}}, r"replica\.prompt_rate = 0: Expected `float` > 0"),
        ({"replica": {"chunk": 0}}, r"replica\.chunk = 0: Expected `int` >= 1"),
        ({"machine": {"queue": {"median": 50, "p90": 15}}}, r"machine\.queue\.p90 = 15: must not be less than"),
        ({"arrivals": {"kind": "wave"}}, r'arrivals\.kind = "wave": Invalid enum value'),
        ({"arrivals": {"mix": [{"prompt": 5}, {"new": 0}]}}, r"arrivals\.mix\[1\]\.new = 0: Expected `int` >= 1"),
        ({"fault": [{"at": 1, "kind": "flood"}]}, r'fault\[0\]\.kind = "flood": Invalid value'),
        ({"fault": [{"kind": "slow"}]}, r"fault\[0\]: Object missing required field `at`"),
        ({"fault": [{"at": 5, "kind": "slow", "times": 0.5}]}, r"fault\[0\]\.times = 0\.5: Expected `float` >= 1"),
        (
            {"seconds": 9, "fault": [{"at": 10, "kind": "slow"}]},
            r"fault\[0\]\.at = 10: must lie within seconds = 9",
        ),
        (
            {"fault": [{"at": 5, "kind": "walltime", "first": 9, "last": 8}]},
            r"fault\[0\]\.first = 9: must not exceed",
        ),
        ({"arrivals": {"kind": "recorded"}}, r"arrivals\.path is missing"),
        ({"arrivals": {"kind": "bursts", "burst_seconds": 30}}, r"arrivals\.burst_seconds = 30: must not exceed"),
    ],
)
def test_a_mistake_is_told_by_its_key_and_value(data: dict[str, Any], told: str) -> None:
    with pytest.raises(DeploymentError, match=f"^s.toml: .*{told}"):
        parsed(data, "s.toml")


@pytest.mark.parametrize(
    ("arrivals", "told"),
    [
        ({"rate": 1e9}, r"arrivals\.rate = 1e\+09: 7e\+10 requests in 70 s"),
        ({"rate_per_replica": 1e7}, r"arrivals\.rate_per_replica = 1e\+07: "),
        ({"rate": 1.0, "kind": "bursts", "burst": 1e9}, r"arrivals\.rate = 1: "),
    ],
)
def test_what_would_never_end_is_refused(arrivals: dict[str, Any], told: str) -> None:
    with pytest.raises(DeploymentError, match=told):
        check_size(parsed({"arrivals": arrivals}, "s.toml"), replicas=12)


def test_the_largest_bar_may_be_simulated() -> None:
    check_size(Scenario(arrivals=Arrivals(rate=40.0), seconds=3600.0), 3072)
    check_size(Scenario(), 3072)


def test_a_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("a = ")
    with pytest.raises(DeploymentError, match=r"bad\.toml cannot be read as a scenario"):
        load(path)


def test_every_preset_is_a_good_file_and_runs_on_the_reference_deployment() -> None:
    for scenario in SCENARIOS.values():
        assert parsed(msgspec.to_builtins(scenario), scenario.name) == scenario
        deployment = reference(scenario, 8)
        assert deployment.wanted_replicas == 96
        assert all(kind.prompt + kind.new <= deployment.model.context for kind in scenario.arrivals.mix)


def until(wanted: Arrivals, seconds: float, seed: int = 1) -> list[Arrival]:
    return list(takewhile(lambda a: a.at < seconds, arrivals(wanted, 10, random.Random(seed))))


def test_arrivals_have_their_rate_and_their_mix() -> None:
    found = until(Arrivals(rate_per_replica=20.0, mix=(Request(share=3.0), Request(prompt=9, new=7))), 100.0)
    assert len(found) == pytest.approx(20_000, rel=0.03)
    assert sum(arrival.prompt == 9 for arrival in found) == pytest.approx(5000, rel=0.06)
    assert found == until(
        Arrivals(rate_per_replica=20.0, mix=(Request(share=3.0), Request(prompt=9, new=7))), 100.0
    )


def test_bursts_bring_so_many_times_as_many() -> None:
    found = until(Arrivals(kind="bursts", rate=100.0, burst=4.0, burst_seconds=2.0, every_seconds=10.0), 200.0)
    inside = sum(arrival.at % 10 < 2 for arrival in found)
    assert inside == pytest.approx(40 * 400, rel=0.05)
    assert len(found) - inside == pytest.approx(160 * 100, rel=0.05)


def test_recorded_arrivals_are_replayed_and_a_bad_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"time": 0.5, "prompt": 7, "new": 3}\n\n{"time": 1, "prompt": 8, "new": 4, "stream": false}\n'
    )
    wanted = Arrivals(kind="recorded", path=str(path))
    assert until(wanted, 99) == [Arrival(0.5, 7, 3, 3, True), Arrival(1.0, 8, 4, 4, False)]
    path.write_text('{"time": 2, "prompt": 7, "new": 3}\n{"time": 1, "prompt": 7, "new": 3}\n')
    with pytest.raises(DeploymentError, match="line 2: time = 1"):
        until(wanted, 99)
    path.write_text('{"time": 2, "prompt": 7}\n')
    with pytest.raises(DeploymentError, match="line 1: Object missing required field `new`"):
        until(wanted, 99)
    with pytest.raises(DeploymentError, match=r"arrivals\.path = .*none.* cannot be read"):
        until(Arrivals(kind="recorded", path=str(tmp_path / "none")), 99)
