"""From what a replica holds to grids, replicas and nodes."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exahpc.deployment.known_models import KNOWN
from exahpc.deployment.memory import Case, Grid
from exahpc.deployment.shape import ModelShape
from exahpc.deployment.sizing import Choice, best, choice, choices, fleet_for, fleet_of
from exahpc.errors import DeploymentError

GIB = 2**30


def case(model: str, memory: int = 80, context: int = 4096, sequences: int = 16) -> Case:
    shape = ModelShape.of(KNOWN[model])
    return Case(shape, "bfloat16", "none", context, sequences, memory * GIB, GIB, 0.05)


def look(model: str, tp: int, pp: int, per_node: int = 4, **more: int) -> Choice:
    return choice(case(model, **more), KNOWN[model], per_node, 4096, Grid(tp, pp))


EIGHT = Choice(1, 1, sequences=8, replicas_per_node=12)


def test_5000_at_once_at_8_a_replica_with_30_percent_headroom_are_68_nodes_of_12() -> None:
    found = fleet_for(5000, 0.3, EIGHT)
    assert (found.replicas, found.nodes, found.array) == (813, 68, "0-67")


def test_headroom_is_counted_exactly() -> None:
    assert fleet_for(100, 0.1, msgspec.structs.replace(EIGHT, sequences=110)).replicas == 1


@pytest.mark.parametrize(("nodes", "concurrency"), [(1, 73), (67, 4947), (68, 5021)])
def test_backwards_from_nodes(nodes: int, concurrency: int) -> None:
    assert fleet_of(nodes, 0.3, EIGHT).concurrency == concurrency


def test_a_replica_that_spans_nodes_needs_all_of_them() -> None:
    wide = Choice(8, 2, sequences=10, nodes_per_replica=2)
    assert (fleet_for(25, 0.0, wide).nodes, fleet_for(25, 0.0, wide).tasks) == (6, 3)
    assert fleet_of(5, 0.0, wide).nodes == 4
    with pytest.raises(DeploymentError, match=r"--nodes = 1: one replica spans 2 nodes: give 2 or more"):
        fleet_of(1, 0.0, wide)


@given(
    st.integers(1, 10**6), st.sampled_from([0.0, 0.1, 0.3, 1.0]), st.integers(1, 300),
    st.integers(1, 16), st.integers(1, 16),
)  # fmt: skip
def test_there_and_back_serves_what_was_asked(
    concurrency: int, headroom: float, sequences: int, on_node: int, over_nodes: int
) -> None:
    shape = Choice(1, 1, sequences=sequences, replicas_per_node=on_node, nodes_per_replica=over_nodes)
    found = fleet_for(concurrency, headroom, shape)
    assert fleet_of(found.nodes, headroom, shape).concurrency >= concurrency
    if found.tasks > 1:
        assert fleet_of(found.nodes - over_nodes, headroom, shape).concurrency < concurrency


@pytest.mark.parametrize(
    ("tp", "pp", "says"),
    [
        (16, 1, "the model has 8 key/value heads: tensor_parallel at most 8"),
        (8, 1, "a tensor-parallel group stays in a node of 4: tensor_parallel at most 4"),
        (1, 1, "a rank needs 13"),
    ],
)
def test_a_grid_that_does_not_work_says_why(tp: int, pp: int, says: str) -> None:
    assert look("llama-3.1-70b", tp, pp).problem.startswith(says)


def test_more_stages_than_layers_and_uneven_nodes_are_refused() -> None:
    assert "the model has 16 layers" in look("llama-3.2-1b", 1, 32).problem
    assert look("llama-3.1-8b", 3, 5).problem == ""  # a stage a node
    assert look("llama-3.1-8b", 1, 5).nodes_per_replica == 5


def test_room_for_less_than_a_context_is_no_room() -> None:
    found = look("llama-3.1-8b", 1, 1, memory=20, context=100_000)
    assert "one context needs 100000" in found.problem or "before any KV cache" in found.problem


def test_a_model_that_is_not_served_has_the_reason_of_up() -> None:
    found = choice(case("gemma-2-9b"), KNOWN["gemma-2-9b"], 4, 4096, Grid(1, 1))
    assert "gemma2" in found.problem
    assert choice(case("gemma-2-9b"), None, 4, 4096, Grid(1, 1)).problem == ""


def test_small_replicas_fill_a_node_and_large_ones_span_several() -> None:
    assert look("llama-3.1-8b", 1, 1).replicas_per_node == 4
    assert look("llama-3.1-8b", 2, 1).replicas_per_node == 2
    large = look("llama-3.1-405b", 4, 4)
    assert (large.nodes_per_replica, large.replicas_per_node) == (4, 1)


def test_uneven_heads_are_told() -> None:
    assert look("llama-3.1-8b", 3, 1, per_node=12).note == "uneven: 3 of 8 KV heads"


def test_the_best_grid_runs_most_on_a_node_with_fewest_ranks() -> None:
    def grid(model: str) -> Grid:
        found = best(choices(case(model), KNOWN[model], 4, 4096))
        assert found is not None
        return found.grid

    assert grid("llama-3.1-8b") == Grid(1, 1)
    assert grid("llama-3.1-70b") == Grid(2, 1)
    assert grid("llama-3.1-405b").ranks == 16


def test_the_cache_holds_what_runs_and_one_context_at_least() -> None:
    found = choice(case("llama-3.1-8b", sequences=2), KNOWN["llama-3.1-8b"], 4, 100, Grid(1, 1))
    assert (found.sequences, found.tokens) == (2, 4096)
    found = choice(case("llama-3.1-8b"), KNOWN["llama-3.1-8b"], 4, 2000, Grid(1, 1))
    assert found.tokens == 32_000
    assert found.held > found.sequences == 16
