"""One local deployment (no Slurm) of two pools, 1x1 twice and 1x2 once, shared by the tests of a session."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live import Live, processes_of, until
from tests.tiny import make_model

TOML = """
name = "{name}"
[model]
path = "{model}"
dtype = "float32"
context = 2048
[[pool]]
name = "a"
replicas = 2
replicas_per_task = 2
max_sequences = 8
[[pool]]
name = "b"
replicas = 1
pipeline_parallel = 2
max_sequences = 4
[head]
entries = 2
[recovery]
backoff_seconds = 0.2
[launcher]
kind = "local"
"""


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def local(tiny: Path) -> Iterator[Live]:
    with tempfile.TemporaryDirectory(prefix="exahpc-e2e-") as home:
        live = Live(Path(home), "local")
        for name in (
            "queue",
            "random",
            "torch",
            "exahpc",
        ):  # of a user, no modules of ours
            (Path(home) / f"{name}.py").write_text("raise SystemExit('imported from the working directory')\n")
        live.up(TOML.format(name="local", model=tiny))
        try:
            yield live
        finally:
            live.run("down", "local", check=False)
        until("every process of the deployment is gone", lambda: not processes_of(live.folder.path), 20)
