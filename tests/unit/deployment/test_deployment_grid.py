"""The memory ledger counts what a checkpoint and its cache really take."""

from __future__ import annotations

import pytest

from exahpc.deployment.grid import ModelShape, kv_tokens, layers_of_stage, ledger
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


def test_ranks_of_an_even_grid_share_the_weights() -> None:
    shape = ModelShape.of(LLAMA_70B)
    whole = ledger(shape, Pool(name="a"), 2048, "bfloat16")
    split = ledger(shape, Pool(name="a", tensor_parallel=4, pipeline_parallel=2), 2048, "bfloat16")
    assert whole.rank_weights == pytest.approx(whole.weights, rel=1e-3)
    assert split.rank_weights == pytest.approx(whole.weights / 8, rel=0.03)
    assert split.rank_kv == whole.kv // 8


def test_an_uneven_split_counts_its_fullest_rank() -> None:
    found = ledger(ModelShape.of(SMOL), Pool(name="a", tensor_parallel=2), 2048, "bfloat16")
    assert found.rank_kv == pytest.approx(found.kv * 2 / 3, rel=1e-6)


@pytest.mark.parametrize(("layers", "stages"), [(30, 1), (30, 2), (30, 4), (7, 3), (3, 3)])
def test_stages_cover_all_layers_and_differ_by_one_at_most(layers: int, stages: int) -> None:
    found = [layers_of_stage(layers, stages, stage) for stage in range(stages)]
    assert sum(found) == layers
    assert max(found) - min(found) <= 1


def test_the_default_kv_cache_holds_half_of_all_sequences_but_one_context_at_least() -> None:
    assert kv_tokens(Pool(name="a", max_sequences=16), 2048) == 16 * 1024
    assert kv_tokens(Pool(name="a", max_sequences=1), 2048) == 2048
    assert kv_tokens(Pool(name="a", kv_tokens=9999), 2048) == 10_000  # whole blocks


@pytest.mark.parametrize("value", [None, 0, -1, "8", True, 1.5])
def test_a_config_without_a_size_names_the_key(value: object) -> None:
    with pytest.raises(DeploymentError, match="num_hidden_layers"):
        ModelShape.of({**SMOL, "num_hidden_layers": value})
