"""Shapes of a node, and the choice between them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from exahpc.deployment import parse, render
from exahpc.errors import DeploymentError
from exahpc.lab.bench.figures import Spread
from exahpc.lab.bench.lengths import Lengths
from exahpc.lab.bench.wish import Load, Slo
from exahpc.lab.ladder.values import Step
from exahpc.lab.resumed import resumed
from exahpc.lab.sweep import run
from exahpc.lab.sweep.shapes import Shape, all_of, parsed, shaped
from exahpc.lab.sweep.trials import Question, Sweep, Trial

TOML = """
name = "x"
[model]
path = "/models/m"
[[pool]]
name = "a"
replicas = 4
replicas_per_task = 2
tensor_parallel = 2
[launcher]
kind = "local"
"""
DEPLOYMENT = parse.load(TOML, "x")
A, B, C = Shape(1, 1, 4), Shape(2, 1, 2), Shape(4, 1, 1)
LENGTH = Lengths("fixed", 8)


def question(slo: Slo = Slo()) -> Question:  # noqa: B008
    loads = (Load(concurrency=8), Load(concurrency=32))
    return Question(render.toml(DEPLOYMENT), 2, (A, B, C), loads, LENGTH, LENGTH, 5, 30, 60, slo, 1)


def step(tokens: float, *, error: float = 1.0, goodput: float | None = None) -> Step:
    zero = Spread()
    return Step(2, 8, tokens, error, 10.0, tokens, 300, 0, zero, zero, zero, goodput)


def sweep(*trials: Trial, slo: Slo = Slo()) -> Sweep:  # noqa: B008
    found = Sweep(question(slo), "x", "m", "", "")
    for trial in trials:
        found = found.having(trial)
    return found


def test_shapes_are_read_as_they_are_written() -> None:
    assert ",".join(map(str, parsed("1x1x8,2x1x4"))) == "1x1x8,2x1x4"


@pytest.mark.parametrize("text", ["", "1x1", "1x0x2", "1x1x1,1x1x1", "axbxc"])
def test_a_shape_that_cannot_be_read_shows_some_that_can(text: str) -> None:
    with pytest.raises(DeploymentError, match="1x1x8,2x1x4,4x1x2"):
        parsed(text)


def test_every_shape_uses_every_rank_and_none_is_left_out() -> None:
    found = all_of(4)
    assert found[0] == Shape(1, 1, 4)
    assert all(one.tensor * one.pipeline * one.replicas == 4 for one in found)
    assert len(found) == len(set(found)) == 6


def test_a_shape_keeps_the_nodes_and_has_a_name_of_its_own() -> None:
    found = shaped(DEPLOYMENT, Shape(1, 2, 3))
    (pool,) = found.pool
    assert (pool.tasks, pool.replicas, pool.replicas_per_task) == (2, 6, 3)
    assert (pool.tensor_parallel, pool.pipeline_parallel) == (1, 2)
    assert found.name == "x-1x2x3"


def test_the_ranks_of_a_node_are_those_of_the_file() -> None:
    assert run.ranks(DEPLOYMENT) == 4


def test_without_an_slo_most_tokens_a_second_win_under_any_load() -> None:
    found = sweep(Trial(A, (step(100), step(150))), Trial(B, (step(120), step(110)))).choice
    assert found is not None
    assert (found.shape, found.load, found.value, found.rivals) == (A, Load(concurrency=32), 150, ())


def test_with_an_slo_goodput_wins_over_throughput() -> None:
    slo = Slo(ttft=1.0)
    found = sweep(Trial(A, (step(900, goodput=1),)), Trial(B, (step(100, goodput=9),)), slo=slo).choice
    assert found is not None
    assert found.shape == B


def test_what_the_measurements_do_not_tell_apart_is_named() -> None:
    found = sweep(Trial(A, (step(100, error=10),)), Trial(B, (step(110, error=10),)), Trial(C, (step(10),))).choice
    assert found is not None
    assert (found.shape, found.rivals) == (B, (A,))


def test_a_shape_is_done_when_it_met_every_load_or_cannot_serve() -> None:
    found = sweep(Trial(A, (step(1), step(2))), Trial(B, (step(1),)), Trial(C, reason="too many heads"))
    assert [found.done(shape) for shape in (A, B, C)] == [True, False, True]
    assert found.choice is not None
    assert sweep(Trial(C, reason="too many heads")).choice is None


def test_a_sweep_goes_on_from_its_file_and_never_mixes_questions(tmp_path: Path) -> None:
    assert resumed(tmp_path / run.FILE, Sweep, question()) is None
    found = sweep(Trial(A, (step(1),)))
    run.save(found, tmp_path)
    assert resumed(tmp_path / run.FILE, Sweep, question()) == found
    with pytest.raises(DeploymentError, match="another --output"):
        resumed(tmp_path / run.FILE, Sweep, msgspec.structs.replace(question(), seed=2))
    (tmp_path / run.FILE).write_text("{")
    with pytest.raises(DeploymentError, match=r"is no sweep\.json"):
        resumed(tmp_path / run.FILE, Sweep, question())
