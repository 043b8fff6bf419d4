from __future__ import annotations

import os
from pathlib import Path

import pytest

from exahpc.slurm import features, process

from .fake_slurm import FakeSlurm


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """Fake Slurm commands before all others on PATH; nothing waits."""
    fake = FakeSlurm(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(process.time, "sleep", lambda seconds: None)
    features.config.cache_clear()
    return fake
