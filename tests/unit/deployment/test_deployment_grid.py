"""The memory ledger counts what a checkpoint and its cache really take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exahpc.deployment.grid import CACHED, kv_heads_of_rank, kv_tokens, layers_of_stage, ledger, stage_layers
from exahpc.deployment.shape import ModelShape
from exahpc.deployment.spec import Pool
from exahpc.errors import DeploymentError

SMOL = {
    "hidden_size": 576,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "num_hidden_layers": 30,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}
LLAMA_70B = {
    "hidden_size": 8192,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_hidden_layers": 80,
    "intermediate_size": 28672,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize(("config", "parameters"), [(SMOL, 134_515_008), (LLAMA_70B, 70_553_706_496)])
def test_published_parameter_counts_come_out(config: dict[str, int], parameters: int) -> None:
    assert ModelShape.of(config).parameters == parameters


def test_a_token_of_kv_cache_takes_two_numbers_a_kv_head_dimension_and_layer() -> None:
    found = ledger(ModelShape.of(LLAMA_70B), Pool(name="a"), 2048, "bfloat16")
    assert found.kv_per_token == 2 * 80 * 8 * 128 * 2
    assert found.kv == found.kv_per_token * found.kv_tokens


def test_ranks_of_an_even_grid_share_layers_and_heads() -> None:
    shape = ModelShape.of(LLAMA_70B)
    whole = ledger(shape, Pool(name="a"), 2048, "bfloat16")
    split = ledger(shape, Pool(name="a", tensor_parallel=4, pipeline_parallel=2), 2048, "bfloat16")
    assert whole.rank_weights == pytest.approx(whole.weights, rel=1e-3)
    table = 128256 * 8192 * 2  # looked up whole by each rank of the first stage
    assert split.rank_weights == pytest.approx((whole.weights - 2 * table) * 41 / 80 / 4 + table, rel=1e-3)
    assert split.rank_kv == pytest.approx(whole.kv * 41 / 80 / 4, rel=1e-6)


def test_an_uneven_split_counts_its_fullest_rank() -> None:
    found = ledger(ModelShape.of(SMOL), Pool(name="a", tensor_parallel=2), 2048, "bfloat16")
    assert found.rank_kv == pytest.approx(found.kv * 2 / 3, rel=1e-6)


def test_the_output_layer_counts_as_layers() -> None:
    assert stage_layers(ModelShape.of(SMOL), 2) == (18, 12)  # 49152 x 576 is worth almost 7 layers
    assert stage_layers(ModelShape.of(LLAMA_70B), 4) == (20, 20, 21, 19)


@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 400_000))
def test_stages_cover_all_layers_and_no_other_split_is_faster(layers: int, stages: int, vocabulary: int) -> None:
    stages = min(stages, layers)
    shape = ModelShape(layers, 64, 4, 2, 16, 256, vocabulary, tied=True)
    spans = [layers_of_stage(shape, stages, stage) for stage in range(stages)]
    assert [a for a, _ in spans] == [0, *(b for _, b in spans[:-1])]
    assert spans[-1][1] == layers
    counts = [b - a for a, b in spans]
    assert min(counts) >= 1
    assert max(counts[:-1], default=1) - min(counts[:-1], default=1) <= 1

    layer = shape.layer_work + CACHED * shape.look_work

    def pace(others: int, last: int) -> int:
        return max(others * layer, last * layer + shape.table)

    mine = pace(max(counts[:-1], default=0), counts[-1])
    for last in range(1, layers - stages + 2):
        assert mine <= pace(
            -(-(layers - last) // max(1, stages - 1)) if stages > 1 else 0, last if stages > 1 else layers
        )


@given(st.integers(1, 100), st.integers(1, 16))
def test_ranks_cover_all_key_value_heads(heads: int, ranks: int) -> None:
    shape = ModelShape(2, 64, heads, heads, 16, 256, 1000, tied=True)
    held = [kv_heads_of_rank(shape, ranks, rank) for rank in range(ranks)]
    assert sum(held) == heads
    assert max(held) - min(held) <= 1


def test_the_default_kv_cache_holds_half_of_all_sequences_but_one_context_at_least() -> None:
    assert kv_tokens(Pool(name="a", max_sequences=16), 2048) == 16 * 1024
    assert kv_tokens(Pool(name="a", max_sequences=1), 2048) == 2048
    assert kv_tokens(Pool(name="a", kv_tokens=9999), 2048) == 10_000  # whole blocks


@pytest.mark.parametrize("value", [None, 0, -1, "8", True, 1.5])
def test_a_config_without_a_size_names_the_key(value: object) -> None:
    with pytest.raises(DeploymentError, match="num_hidden_layers"):
        ModelShape.of({**SMOL, "num_hidden_layers": value})
