"""`exahpc simulate`: what it prints and writes, and how mistakes are told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from exahpc.cli import main
from exahpc.lab.simulate.presets import SCENARIOS

DEPLOYMENT = """
name = "small"
model = {path = "/models/small", context = 1024}
[[pool]]
name = "a"
replicas = 4
replicas_per_task = 2
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["simulate", *arguments])


def test_all_scenarios_are_listed() -> None:
    listed = run("--list")
    assert listed.exit_code == 0
    assert {line.split()[0] for line in listed.stdout.splitlines()} == set(SCENARIOS)


def test_a_file_of_each_kind_is_simulated_and_the_seed_decides(tmp_path: Path) -> None:
    deployment, scenario, out = tmp_path / "small.toml", tmp_path / "plan.toml", tmp_path / "out"
    deployment.write_text(DEPLOYMENT)
    scenario.write_text('name = "plan"\nseconds = 10\nwarm = 1\n[[fault]]\nat = 4\nkind = "node-down"\n')

    def made(seed: int) -> bytes:
        done = run(
            str(deployment), "--scenario", str(scenario), "--rate", "5", "--seed", str(seed), "-o", str(out)
        )
        assert done.exit_code == 0, done.output
        assert "first token, P50 / P99 ms" in done.stdout
        assert str(out / "simulation.json") in done.stdout
        assert "4 EMULATED replicas" in done.stderr
        return (out / "simulation.json").read_bytes()

    first = made(3)
    assert made(3) == first != made(4)
    told = json.loads(first)
    assert told["deployment"] == "small"
    assert "latency model" in told["emulated"]
    assert told["faults"][0]["what"].startswith("nodes down")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--scenario", "nope"), "'nope' is no scenario (--list names them) and no file"),
        (("small.toml", "--nodes", "3"), "--nodes is for the reference deployment"),
        (("--scenario", "bad.toml"), "bad.toml: arrivals.rate = -1: Expected `float` > 0"),
        (("--latency", "small.toml"), "small.toml is not a curve.json"),
        (("--rate", "1e12"), "arrivals.rate = 1e+12: "),
        (("small.toml", "--scenario", "recorded.toml"), "arrivals.path = 'nothing.jsonl' cannot be read"),
    ],
)
def test_a_mistake_is_told_with_its_remedy(
    arguments: tuple[str, ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(DEPLOYMENT)
    (tmp_path / "bad.toml").write_text("arrivals.rate = -1\n")
    (tmp_path / "recorded.toml").write_text('arrivals.kind = "recorded"\narrivals.path = "nothing.jsonl"\n')
    done = run(*arguments)
    assert done.exit_code == 2
    assert told in done.output
