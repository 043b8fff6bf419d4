"""A batch's own deployment: found again by its output, started anew when it has ended, never left behind."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from exahpc.deployment import render
from exahpc.deployment.spec import Deployment, Launcher, Model, Pool
from exahpc.errors import DeploymentError, ExahpcError, LinkError
from exahpc.launch.hired import LIVES_IN_VAIN, Hired, name_for
from exahpc.wire.messages import BatchQuery, BatchState, BatchStatus, StatusReply

QUERY = BatchQuery("b")


class World:
    """What stands for launcher, Slurm and broker. ended: why the deployment can never answer any more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
        monkeypatch.setenv("EXAHPC_HOME", str(home))
        self.acts: list[str] = []
        self.living: list[str] = []
        self.reply: StatusReply | None = None
        self.answer: BatchState | None = None
        self.ended: str | None = None
        monkeypatch.setattr("exahpc.launch.start.begin", self._begin)
        monkeypatch.setattr("exahpc.launch.start.ended", lambda *_: lambda: self.ended)
        monkeypatch.setattr("exahpc.launch.ready.look", lambda *_: self.reply)
        monkeypatch.setattr("exahpc.launch.stop.left", lambda *_: self.living)
        monkeypatch.setattr("exahpc.launch.stop.drain", lambda *_: None)
        monkeypatch.setattr("exahpc.launch.stop.finish", self._finish)
        monkeypatch.setattr("exahpc.launch.prepare.create", self._create)
        monkeypatch.setattr("exahpc.launch.asking.about_batch", self._ask)
        self.said: list[str] = []
        self.hired = self.again()

    def again(self, **changes: Any) -> Hired:
        deployment = Deployment(
            name="batch-x", model=Model(path="/m"), pool=(Pool(name="a"),), launcher=Launcher(kind="local")
        )
        return Hired(msgspec.structs.replace(deployment, **changes), None, self.said.append, clock=lambda: 0.0)

    def _create(self, path: Path, deployment: Deployment) -> None:
        self.acts.append("create")
        (path / "deployment.toml").write_text(render.toml(deployment))

    def _begin(self, *_: object, **__: object) -> None:
        self.acts.append("begin")
        self.living, self.ended = ["head"], None

    def _finish(self, *_: object, **__: object) -> None:
        self.acts.append("finish")
        self.living, self.reply = [], None

    def _ask(self, *_: object) -> BatchState:
        if self.answer is None:
            raise LinkError("no head")
        return self.answer

    def ask(self) -> None:
        with contextlib.suppress(LinkError):
            self.hired.ask(QUERY)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    return World(monkeypatch, tmp_path)


def state(ok: int) -> BatchState:
    return BatchState(BatchStatus("b", "f", 9, ok, 0, 1, "running"))


def reply(*, draining: bool) -> StatusReply:
    return StatusReply(1, 1, 0, [], [], [], [], draining=draining)


def test_the_name_follows_from_the_place_of_the_output_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    name = name_for(tmp_path / "my out.h5")
    assert name == name_for(tmp_path / "link" / "my out.h5")
    assert name.startswith("batch-my-out-")
    assert name != name_for(tmp_path / "my out.hdf5")
    assert len(name_for(tmp_path / ("x" * 200))) <= 63


def test_what_is_up_is_gone_on_with_and_what_is_not_is_started(world: World) -> None:
    world.hired.bring_up()
    assert world.acts == ["create", "begin"]
    world.again().bring_up()
    assert world.acts == ["create", "begin"]
    assert "going on with deployment batch-x, which is up" in world.said
    world.living = []
    world.again().bring_up()
    assert world.acts == ["create", "begin"] * 2


def test_one_that_an_earlier_run_takes_down_is_waited_for_first(world: World) -> None:
    world.hired.bring_up()
    world.reply = reply(draining=True)
    world.again().bring_up()
    assert world.acts == ["create", "begin", "finish", "create", "begin"]


def test_one_of_other_options_is_not_taken_for_it(world: World) -> None:
    world.hired.bring_up()
    with pytest.raises(DeploymentError, match="started with other options: give the same ones, or end it"):
        world.again(pool=(Pool(name="a", replicas=2),)).bring_up()


def test_a_deployment_that_has_ended_is_brought_up_again_while_rows_get_done(world: World) -> None:
    world.hired.bring_up()
    for rows in range(1, 9):
        world.answer = state(rows)
        world.ask()
        world.answer, world.ended = None, "all jobs have ended"
        world.ask()
    assert world.acts.count("begin") == 9


def test_deployments_that_end_one_after_another_without_a_row_are_not_started_for_ever(world: World) -> None:
    world.hired.bring_up()
    for _ in range(LIVES_IN_VAIN - 1):
        world.ended = "all jobs have ended"
        world.ask()
    world.ended = "all jobs have ended"
    with pytest.raises(ExahpcError, match="all jobs have ended; 3 times in a row, and no row was done meanwhile"):
        world.ask()


def test_a_head_that_is_only_away_is_waited_for(world: World) -> None:
    world.hired.bring_up()
    for _ in range(50):
        world.ask()
    assert world.acts == ["create", "begin"]
    assert world.hired.text == "waiting for the head"


def test_taking_down_what_is_down_does_nothing(world: World) -> None:
    world.hired.take_down()
    world.hired.bring_up()
    world.hired.take_down()
    world.hired.take_down()
    assert world.acts == ["create", "begin", "finish"]
    world.hired.purge()
    assert not world.hired.folder.path.exists()
