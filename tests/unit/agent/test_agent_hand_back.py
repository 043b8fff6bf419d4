"""How a task that cannot serve leaves: back to Slurm a few times, then to the broker's budget."""

from __future__ import annotations

import pytest

from exahpc.agent.__main__ import MOST_REQUEUES, _hand_back_code
from exahpc.deployment.parse import load

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
