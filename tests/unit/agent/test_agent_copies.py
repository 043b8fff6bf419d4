"""Laws of what an agent does about its node's copies of weights."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from exahpc.agent import processes
from exahpc.agent.starter import Starter
from exahpc.deployment.parse import load
from exahpc.models.copies import DIRECTORY, PREFIX, Held, Store
from exahpc.wire.folder import Folder

TOML = """
name = "d"
launcher.kind = "local"
[model]
path = "/m"
stage = "$NODE_DISK"
[[pool]]
name = "a"
"""


@pytest.fixture
def starter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Starter:
    monkeypatch.setenv("NODE_DISK", str(tmp_path / "disk"))
    (tmp_path / "disk").mkdir()
    folder = Folder.create(tmp_path / "folder", TOML)
    deployment = load(folder.toml)
    return Starter(folder, deployment, deployment.pool[0], 0)


def copy(where: Path, key: str) -> Held:
    claim = Store(where).claim(key)
    assert claim is not None
    with claim:
        writer = claim.writer(1)
        writer.write("model.safetensors", b"x" * 4096)
        return claim.publish(writer.done())


def test_steps_are_told_the_directory_as_the_agent_sees_it(starter: Starter, tmp_path: Path) -> None:
    assert starter._environment()[DIRECTORY] == str(tmp_path / "disk")


def test_an_agent_that_leaves_removes_what_nobody_uses_any_more(starter: Starter, tmp_path: Path) -> None:
    mine, others = copy(tmp_path / "disk", "mine"), copy(tmp_path / "disk", "others")
    mine.close()
    starter.leave()
    assert not mine.path.exists()
    assert others.path.exists()


def test_an_agent_whose_directory_is_gone_leaves_all_the_same(starter: Starter, tmp_path: Path) -> None:
    (tmp_path / "disk").rmdir()
    starter.leave()


def test_weights_that_a_step_maps_are_not_taken_for_its_own_shared_memory() -> None:
    store = Path("/dev/shm") / f"{PREFIX}test-{os.getpid()}"
    store.mkdir()
    file = store / "model.safetensors"
    file.write_bytes(b"x" * 4096)
    try:
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            assert mapped[0]
            assert str(file) in Path("/proc/self/maps").read_text()
            assert str(file) not in processes.shared_memory([os.getpid()])
    finally:
        file.unlink()
        store.rmdir()
