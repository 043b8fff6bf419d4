"""`exahpc watch`: does what the broker wishes, on a login node, until the deployment is down."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from exahpc.cli import watch as module
from exahpc.errors import DeploymentError
from exahpc.slurm.jobbook import JobBook
from exahpc.slurm.remote import Answer, Cancel, directory
from exahpc.wire.folder import Folder, write_atomic

TOML = 'name="w"\nmodel.path="/m"\n[[pool]]\nname="a"\n'
WATCHED = f'{TOML}[launcher]\ncommands="watch"\n'


class Slurm:
    """Knows no job."""

    name = "scripted"

    def __init__(self) -> None:
        self.cancelled: list[str] = []

    def cancel(self, job: str, *, signal: str | None = None) -> None:
        self.cancelled.append(job)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[Folder, Slurm]]:
    def make(toml: str) -> tuple[Folder, Slurm]:
        monkeypatch.setenv("EXAHPC_HOME", str(tmp_path))
        slurm = Slurm()
        monkeypatch.setattr(module, "slurm_client", lambda deployment: slurm)
        monkeypatch.setattr(module, "_LOOK", 3)
        return Folder.create(tmp_path / "w", toml), slurm

    return make


def test_wishes_are_done_and_answered_and_the_end_of_the_deployment_ends_it(
    made: Callable[[str], tuple[Folder, Slurm]],
) -> None:
    folder, slurm = made(WATCHED)
    JobBook(None, {}).save(folder.path)
    wish = directory(folder.path) / "1.wish"
    write_atomic(wish, msgspec.json.encode(Cancel("7", None)))
    done = CliRunner().invoke(module.watch, ["w"])
    assert done.exit_code == 0, done.output
    assert slurm.cancelled == ["7"]
    answer = msgspec.json.decode(wish.with_suffix(".answer").read_bytes(), type=Answer)
    assert answer == Answer()
    assert "cancel 7" in done.stderr
    assert "w is down" in done.stderr


def test_a_deployment_whose_broker_asks_slurm_itself_is_not_watched(
    made: Callable[[str], tuple[Folder, Slurm]],
) -> None:
    made(TOML)
    done = CliRunner().invoke(module.watch, ["w"])
    assert isinstance(done.exception, DeploymentError)
    assert 'launcher.commands = "watch"' in str(done.exception)
