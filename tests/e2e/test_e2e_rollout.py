"""A new version comes into force under load, and goes again: no request fails, none meets both versions."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from exahpc.launch import rollout
from exahpc.wire import messages as m
from tests.live import Live, Load, processes_of, until

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(1500)]

TOML = """
name = "rolled"
[model]
path = "{model}"
dtype = "float32"
context = 512
[limits]
max_tokens_default = {tokens}
[[pool]]
name = "a"
replicas = 2
max_sequences = 8
[rollout]
samples = 2
canary = 0.5
slower = 100
most_errors = 0.02
drain_seconds = 20
seconds = 900
[head]
entries = 1
[launcher]
kind = "local"
"""


@pytest.fixture(scope="module")
def live(tiny: Path) -> Iterator[Live]:
    with tempfile.TemporaryDirectory(prefix="exahpc-e2e-") as home:
        live = Live(Path(home), "rolled")
        live.up(TOML.format(model=tiny, tokens=7))
        try:
            yield live
        finally:
            live.run("down", "rolled", "--seconds", "5", check=False)
        until("every process of the deployment is gone", lambda: not processes_of(live.folder.path), 20)


def status(live: Live) -> m.RolloutStatus:
    return rollout.tell(live.folder, m.RolloutQuery())


def versions(live: Live) -> list[str]:
    found = live.status()
    return [agent.version if agent.alive else "away" for agent in found.agents] if found else []


def default_tokens(live: Live) -> int | None:
    done = live.client().completions.create(model="tiny", prompt="how many", temperature=0)
    return done.usage.completion_tokens if done.usage else None


def test_a_version_comes_into_force_and_goes_again_without_a_failed_request(live: Live, tiny: Path) -> None:
    assert default_tokens(live) == 7
    new = live.home / "new.toml"
    new.write_text(TOML.format(model=tiny, tokens=9))
    load = Load(live, streams=2, tokens=60)
    live.run("rollout", "start", "rolled", str(new), "--label", "nine", seconds=900)
    assert versions(live) == ["nine", "nine"]
    found = status(live)
    assert (found.current, found.phase) == ("nine", "done")
    assert {v.version: v.tasks for v in found.versions} == {"": 0, "nine": 2}
    assert min(v.served for v in found.versions) >= 2, "each was judged by requests of its own"
    assert all(v.failed == v.odd == v.deaths == 0 for v in found.versions), found
    assert default_tokens(live) == 9

    again = live.run("rollout", "start", "rolled", str(new), "--label", "ten", check=False)
    assert again.returncode == 2
    assert "in force" in again.stderr

    live.run("rollout", "rollback", "rolled", seconds=900)
    load.stop()
    assert load.texts
    for prompt in {p for p, _ in load.texts}:
        assert len({t for p, t in load.texts if p == prompt}) == 1
    assert versions(live) == ["", ""]
    assert default_tokens(live) == 7
    shown = live.run("rollout", "status", "rolled").stdout
    assert "in force: base" in shown
    assert "rolled back by command" in shown
    assert not list((live.folder.path / "versions").rglob(".*")), "nothing half written"


@pytest.mark.long
def test_a_version_that_cannot_load_is_rolled_back_and_says_why(live: Live, tiny: Path) -> None:
    with tempfile.TemporaryDirectory() as elsewhere:
        broken = Path(elsewhere) / "tiny"
        broken.mkdir()
        for file in tiny.iterdir():
            (broken / file.name).write_bytes(file.read_bytes())
        new = live.home / "broken.toml"
        new.write_text(TOML.format(model=broken, tokens=9))
        live.run("rollout", "start", "rolled", str(new), "--label", "broken", "--no-wait")
        for file in broken.glob("*.safetensors"):  # it was there when it was checked
            file.unlink()
        found = until("it is rolled back", lambda: (s := status(live)).phase == "reverted" and s, 900)
    assert "death" in found.story or "not ready" in found.story or "not back" in found.story, found
    until("all are ready", lambda: live.ready() == 2, 120)
    assert versions(live) == ["", ""]
    assert default_tokens(live) == 7
    assert msgspec.structs.asdict(status(live))["current"] == ""
