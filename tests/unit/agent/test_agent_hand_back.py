"""How a task that cannot serve leaves: back to Slurm a few times, then to the broker's budget."""

from __future__ import annotations

from pathlib import Path

import pytest

from exahpc.agent.__main__ import MOST_REQUEUES, _hand_back_code, _requeue
from exahpc.deployment.parse import load
from tests.unit.slurm.fake_slurm import FakeSlurm

TOML = """
name = "test"
[model]
path = "/models/none"
[[pool]]
name = "a"
requeue = {requeue}
[launcher]
kind = "{kind}"
"""


@pytest.mark.parametrize(
    ("kind", "requeue", "restarts", "code"),
    [
        ("slurm", "true", 0, 75),
        ("slurm", "true", MOST_REQUEUES - 1, 75),
        ("slurm", "true", MOST_REQUEUES, 0),
        ("slurm", "false", 0, 0),
        ("local", "true", MOST_REQUEUES, 1),
    ],
)
def test_a_task_circles_through_slurm_a_bounded_number_of_times(
    monkeypatch: pytest.MonkeyPatch, kind: str, requeue: str, restarts: int, code: int
) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(restarts))
    deployment = load(TOML.format(kind=kind, requeue=requeue))
    assert _hand_back_code(deployment, deployment.pool[0]) == code


@pytest.mark.case("B41")
@pytest.mark.parametrize("task", ["0", "1"])
def test_a_task_hands_back_itself_and_never_its_array(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    slurm = FakeSlurm(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("EXAHPC_SLURM_CLIENT", "cli")
    monkeypatch.setattr("exahpc.agent.__main__.has_requeue_exit", lambda code: False)
    own = {"SLURM_JOB_ID": "1234", "SLURM_ARRAY_JOB_ID": "1234", "SLURM_ARRAY_TASK_ID": task}
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    _requeue()
    asked = [call[1:] for call in slurm.calls("scontrol") if "requeue" in call]
    assert asked == [["requeue", f"1234_{task}"]]
