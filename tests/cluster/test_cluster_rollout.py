"""A new version on the development cluster, under load: first for one of two tasks, promoted, then rolled back.

The versions are two models that say different things, so a text shows who made it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from exahpc.launch import rollout
from exahpc.wire import messages as m
from tests.cluster.conftest import DevCluster
from tests.cluster.deployed import deployed, devcluster, home
from tests.live import Live, Load, until
from tests.tiny import make_model

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(900)]

TOML = """
name = "rolled"
[model]
path = "{model}"
name = "tiny"
dtype = "float32"
context = 1024
[slurm]
partition = "main"
time = "1:00:00"
[[pool]]
name = "a"
replicas = 2
max_sequences = 8
[rollout]
canary = 0.5
samples = 1000000
slower = 100
drain_seconds = 1
seconds = 300
[head]
entries = 1
[recovery]
backoff_seconds = 0.2
beat_seconds = 1.0
[walltime]
successors = "off"
"""
TOKENS = 300


@pytest.fixture(scope="module")
def nodes() -> Iterator[DevCluster]:
    with devcluster("ru", 3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with home() as made:
        make_model(made / "models" / "other", layers=2, seed=1)
        yield made


def status(live: Live) -> m.RolloutStatus:
    return rollout.tell(live.folder, m.RolloutQuery())


def served(live: Live) -> list[str]:
    found = live.status()
    return [agent.version for agent in found.agents if agent.alive] if found else []


def test_a_version_is_tried_promoted_and_taken_back_and_no_request_fails_or_meets_both(
    nodes: DevCluster, place: Path
) -> None:
    with deployed(nodes, place, "rolled", TOML.format(model=place / "models" / "tiny")) as live:
        found = live.status()
        assert found is not None
        jobs = {agent.task: agent.job for agent in found.agents}
        prompts = [f"stream {number}: " for number in range(3)]
        old = {prompt: live.stream(prompt, TOKENS) for prompt in prompts}
        new = live.home / "new.toml"
        new.write_text(TOML.format(model=place / "models" / "other"))

        load = Load(live, streams=len(prompts), tokens=TOKENS)
        live.run("rollout", "start", "rolled", str(new), "--label", "v2", "--no-wait")
        until("the canary serves", lambda: status(live).phase == "judging", 240)
        assert sorted(served(live)) == ["", "v2"]
        until("the canary is asked", lambda: status(live).versions[1].served > 0, 120)
        live.run("rollout", "promote", "rolled", "--wait", seconds=600)
        assert served(live) == ["v2", "v2"]
        young = {prompt: live.stream(prompt, TOKENS) for prompt in prompts}
        assert all(young[prompt] != old[prompt] for prompt in prompts)
        live.run("rollout", "rollback", "rolled", seconds=600)
        assert served(live) == ["", ""]
        assert {prompt: live.stream(prompt, TOKENS) for prompt in prompts} == old
        load.stop()

        texts = [(prompt, text) for prompt, text in load.texts if text not in (old[prompt], young[prompt])]
        assert not texts, f"{len(texts)} of {len(load.texts)} are of neither version"
        assert {text == old[prompt] for prompt, text in load.texts} == {True, False}, "both versions were asked"
        found = live.status()
        assert found is not None
        assert {agent.task: agent.job for agent in found.agents} == jobs, "no task left its job"
        restarts = nodes.run("squeue", "-h", "-r", "-O", "RestartCnt:10").split()
        assert set(restarts) == {"0"}, "nor was one requeued"
        assert "rolled back by command" in status(live).story
