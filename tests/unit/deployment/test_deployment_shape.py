"""The sizes of published models come out of their config.json, in whatever words it is written."""

from __future__ import annotations

from typing import Any

import pytest

from exahpc.deployment.families import FAMILIES
from exahpc.deployment.shape import ModelShape
from exahpc.errors import DeploymentError

PUBLISHED: dict[str, tuple[int, dict[str, Any]]] = {
    "phi-2": (
        2_779_683_840,
        {
            "model_type": "phi",
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "vocab_size": 51200,
        },
    ),
    "opt-6.7b": (
        6_658_473_984,
        {
            "model_type": "opt",
            "hidden_size": 4096,
            "ffn_dim": 16384,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "vocab_size": 50272,
            "max_position_embeddings": 2048,
        },
    ),
    "gpt-j-6b": (
        6_050_882_784,
        {
            "model_type": "gptj",
            "n_embd": 4096,
            "n_layer": 28,
            "n_head": 16,
            "n_inner": None,
            "vocab_size": 50400,
            "n_positions": 2048,
        },
    ),
    "gpt-neox-20b": (
        20_554_567_680,
        {
            "model_type": "gpt_neox",
            "hidden_size": 6144,
            "intermediate_size": 24576,
            "num_hidden_layers": 44,
            "num_attention_heads": 64,
            "vocab_size": 50432,
        },
    ),
    "falcon-7b": (
        6_921_720_704,
        {
            "model_type": "falcon",
            "hidden_size": 4544,
            "num_hidden_layers": 32,
            "num_attention_heads": 71,
            "vocab_size": 65024,
            "multi_query": True,
        },
    ),
    "falcon-40b": (
        41_303_293_952,
        {
            "model_type": "falcon",
            "hidden_size": 8192,
            "num_hidden_layers": 60,
            "num_attention_heads": 128,
            "num_kv_heads": 8,
            "vocab_size": 65024,
            "new_decoder_architecture": True,
        },
    ),
    "Mixtral-8x7B": (
        46_702_792_704,
        {
            "model_type": "mixtral",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 32000,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
    ),
    "Qwen3-30B-A3B": (
        30_532_122_624,
        {
            "model_type": "qwen3_moe",
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "moe_intermediate_size": 768,
            "num_hidden_layers": 48,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "vocab_size": 151936,
            "num_experts": 128,
            "num_experts_per_tok": 8,
        },
    ),
    "starcoder2-7b": (
        7_173_923_840,
        {
            "model_type": "starcoder2",
            "hidden_size": 4608,
            "intermediate_size": 18432,
            "num_hidden_layers": 32,
            "num_attention_heads": 36,
            "num_key_value_heads": 4,
            "vocab_size": 49152,
        },
    ),
    "gemma-3-1b": (
        999_885_952,
        {
            "model_type": "gemma3_text",
            "hidden_size": 1152,
            "intermediate_size": 6912,
            "num_hidden_layers": 26,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "vocab_size": 262144,
        },
    ),
    "SmolLM3-3B": (
        3_075_098_624,
        {
            "model_type": "smollm3",
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "vocab_size": 128256,
        },
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_parameter_counts_come_out_but_for_biases(name: str) -> None:
    parameters, config = PUBLISHED[name]
    assert ModelShape.of(config).parameters == pytest.approx(parameters, rel=5e-4)


def test_a_token_of_a_mixture_goes_through_few_experts_and_their_router() -> None:
    mixture = ModelShape.of(PUBLISHED["Mixtral-8x7B"][1])
    assert 12.5e9 < mixture.layers * mixture.layer_work + 2 * mixture.table < 13e9  # "uses 13B per token"
    sparse, dense = PUBLISHED["Qwen3-30B-A3B"][1], {"mlp_only_layers": list(range(48))}
    assert ModelShape.of({**sparse, "decoder_sparse_step": 2}).dense_layers == 24
    assert ModelShape.of({**sparse, **dense}).layer_work * 48 < 48 * (3 * 2048 * 6144 + 40e6)


def test_falcons_three_generations_have_different_key_value_heads() -> None:
    _, seven = PUBLISHED["falcon-7b"]
    _, forty = PUBLISHED["falcon-40b"]
    assert ModelShape.of(seven).kv_heads == 1
    assert ModelShape.of({**seven, "multi_query": False}).kv_heads == 71
    assert ModelShape.of(forty).kv_heads == 8


def test_what_the_file_does_not_say_is_as_the_family_has_it() -> None:
    _, gemma = PUBLISHED["gemma-3-1b"]
    assert ModelShape.of(gemma).tied
    assert ModelShape.of(gemma).head_size == 256
    assert not ModelShape.of({**gemma, "model_type": "qwen3"}).tied
    assert ModelShape.of({**gemma, "tie_word_embeddings": False}).tied is False


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_missing_size_is_named_as_the_family_writes_it(kind: str) -> None:
    key = FAMILIES[kind].keys.get("num_hidden_layers", "num_hidden_layers")
    with pytest.raises(DeploymentError, match=f"{FAMILIES[kind].keys.get('hidden_size', 'hidden_size')} = None"):
        ModelShape.of({"model_type": kind, key: 3})
