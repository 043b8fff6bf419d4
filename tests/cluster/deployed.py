"""A development cluster for a module, and a deployment on it for a test: up, and gone without a trace."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.conftest import DevCluster, why_not
from tests.live import Live, processes_of, until
from tests.tiny import make_model


@contextmanager
def devcluster(name: str, nodes: int, **settings: str) -> Iterator[DevCluster]:
    """Of its own, so that a module may break it. Skips where there can be none."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    cluster = DevCluster(name, nodes, **settings)
    cluster.up()
    try:
        yield cluster
    finally:
        cluster.down()


@contextmanager
def home(layers: int = 2) -> Iterator[Path]:
    """A folder for deployments that all nodes see, with a tiny model at `models/tiny`."""
    made = Path(tempfile.mkdtemp(prefix="exahpc-test-", dir="/var/tmp"))
    try:
        make_model(made / "models" / "tiny", layers=layers)
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


@contextmanager
def deployed(nodes: DevCluster, home: Path, name: str, toml: str) -> Iterator[Live]:
    """The deployment, all of it ready. toml: whole, or without `name` and `[model]`, which then come first.

    What a test leaves is taken down, at once when it failed; after one that passed nothing may be left.
    """
    live = Live(home, name, {"SLURM_CONF": nodes.conf})
    model = f'name = "{name}"\n[model]\npath = "{home / "models" / "tiny"}"\ndtype = "float32"\ncontext = 2048\n'
    try:
        live.up(toml if "[model]" in toml else model + toml)
        yield live
        live.run("down", name)
        assert not nodes.run("squeue", "-h", "-o", "%i").strip(), "down leaves no job"
        until("down leaves no process", lambda: not processes_of(live.folder.path), 20)
    finally:
        live.run("down", name, "--seconds", "0", check=False)
        nodes.clear()
