"""Laws of the change to another version: it ends like a drain, and the task starts again where it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from exahpc.agent.core import AgentCore
from exahpc.agent.events import (
    Action,
    CanaryEnded,
    CloseIntake,
    Drain,
    Ended,
    Finish,
    Hello,
    Launched,
    Lost,
    Order,
    Stop,
    Tick,
)
from exahpc.agent.leaving import EXIT_AGAIN, STOP_GRACE
from exahpc.agent.starter import Starter
from exahpc.deployment.parse import load
from exahpc.deployment.spec import Recovery
from exahpc.wire.folder import Folder
from exahpc.wire.messages import DrainAgent, SwitchVersion

SWITCH = Order(SwitchVersion(1, "v2", 60.0))


def serving(version: str = "v1") -> AgentCore:
    core = AgentCore([0], Recovery(), hand_back_code=75, epoch=1, version=version)
    core.handle(Tick(), 0)
    core.handle(Launched(0, 1), 0)
    core.handle(Hello(0, 1), 0)
    core.handle(CanaryEnded(0, 1), 0)
    return core


def of(kind: type[Action], actions: list[Action]) -> list[Action]:
    return [action for action in actions if isinstance(action, kind)]


def finish(core: AgentCore, now: float) -> Finish:
    core.handle(Tick(), now)
    (found,) = of(Finish, core.handle(Ended(0, 1, "exit code 0", True), now))
    assert isinstance(found, Finish)
    return found


def test_work_finishes_and_then_the_task_starts_again_in_place() -> None:
    core = serving()
    assert of(CloseIntake, core.handle(SWITCH, 1)) == [CloseIntake("switching to v2")]
    assert of(Stop, core.handle(Tick(frozenset({0})), 2)) == [], "what runs goes on"
    assert of(Stop, core.handle(Tick(), 3)) == [Stop(0, 1)]
    assert finish(core, 4) == Finish(EXIT_AGAIN, "switching to v2", False)
    assert EXIT_AGAIN not in (0, 75), "codes by which the supervisor does not start it again"


def test_work_that_outlasts_the_drain_is_moved() -> None:
    core = serving()
    core.handle(SWITCH, 1)
    core.handle(Tick(frozenset({0})), 2)
    actions = core.handle(Tick(frozenset({0})), 61)
    assert (of(Lost, actions), of(Stop, actions)) == ([Lost(0, own_exit=False)], [Stop(0, 1)])
    assert of(Finish, core.handle(Tick(), 62 + STOP_GRACE + 60)), "whatever still hangs"


def test_a_task_that_has_the_version_goes_on() -> None:
    core = serving("v2")
    assert core.handle(SWITCH, 1) == []
    assert not core.draining


def test_a_switch_of_an_old_broker_is_ignored() -> None:
    core = serving()
    assert core.handle(Order(SwitchVersion(0, "v2", 60.0)), 1) == []
    assert not core.draining


@pytest.mark.parametrize(
    ("other", "code", "requeue"),
    [
        (Order(DrainAgent(1, 30.0, "down")), 0, False),
        (Drain(30.0, "walltime", requeue=True), 75, True),
    ],
)
@pytest.mark.parametrize("switch_first", [True, False])
def test_an_end_wins_over_a_switch_whichever_comes_first(
    other: Order | Drain, code: int, requeue: bool, switch_first: bool
) -> None:
    core = serving()
    for event in (SWITCH, other) if switch_first else (other, SWITCH):
        core.handle(event, 1)
    found = finish(core, 4)
    assert (found.code, found.requeue) == (code, requeue)
    assert "switching" not in found.reason


TOML = """
name = "d"
[model]
path = "/m"
[[pool]]
name = "a"
replicas = 2
[launcher]
kind = "local"
"""


def test_a_task_loads_its_own_version_else_the_one_in_force_else_the_first(tmp_path: Path) -> None:
    folder = Folder.create(tmp_path / "d", TOML)
    folder.add_version("v2", TOML)
    assert [folder.assigned("a", task) for task in (0, 1)] == ["", ""]
    folder.assign("a", 1, "v2")
    assert [folder.assigned("a", task) for task in (0, 1)] == ["", "v2"]
    folder.put_in_force("v2")
    folder.assign("a", 1, "")
    assert [folder.assigned("a", task) for task in (0, 1)] == ["v2", ""]
    files = [path for path in (folder.path / "versions").rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    Folder.create(folder.path, TOML)
    assert folder.versions() == [], "`up` begins anew"
    assert folder.assigned("a", 1) == ""


def test_a_step_is_told_which_file_to_load_and_known_by_its_content(tmp_path: Path) -> None:
    folder = Folder.create(tmp_path / "d", TOML)
    folder.add_version("v2", TOML + "[limits]\nrequests = 2\n")
    folder.add_version("same", TOML)
    made = {v: Starter(folder, load(folder.version_toml(v)), load(TOML).pool[0], 0, v) for v in ("", "v2", "same")}
    assert made[""]._digest != made["v2"]._digest, "its steps are not adopted by the other's agent"
    assert made[""]._digest == made["same"]._digest
