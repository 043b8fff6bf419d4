"""A model or grid that was not tested, or cannot work, is refused before a node is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from exahpc.deployment.architectures import check
from exahpc.deployment.families import FAMILIES
from exahpc.errors import DeploymentError

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "num_hidden_layers": 30,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e5},
}


def run(tp: int = 1, pp: int = 1, context: int = 2048, **changes: Any) -> None:
    check({**CONFIG, **changes}, tensor_parallel=tp, pipeline_parallel=pp, context=context, pool="a")


WORDS = {
    "opt": {"ffn_dim": 2304},
    "gptj": {"n_layer": 30, "n_embd": 576, "n_head": 9, "n_positions": 8192},
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 3},
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
}


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_tested_architectures_pass(kind: str) -> None:
    run(3, 30, model_type=kind, **WORDS.get(kind, {}))


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"model_type": "gpt2"}, "tested architectures: llama, mistral, qwen2, qwen3, gemma3_text"),
        ({"model_type": None}, "tested architectures"),
        ({"tp": 4}, "pool 'a': tensor_parallel = 4.*set tensor_parallel to at most 3"),
        ({"pp": 31}, "set pipeline_parallel to at most 30"),
        ({"context": 9000}, "set model.context to at most 8192"),
        ({"quantization_config": {}}, "quantized"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "rope type 'dynamic'"),
        ({"rope_scaling": {"type": "longrope"}}, "rope type 'longrope'"),
        ({"model_type": "gptj", **WORDS["gptj"], "context": 9000}, r"8192 positions \(n_positions\)"),
        (
            {"model_type": "gemma3_text", "rope_parameters": {"full_attention": {"rope_type": "dynamic"}}},
            "rope type 'dynamic'.*longest sequence so far",
        ),
        ({"model_type": "falcon", "alibi": True}, "ALiBi"),
        ({"model_type": "falcon", "multi_query": True, "tp": 2}, "1 key/value heads: set tensor_parallel to 1 "),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "encoder"),
        ({"num_hidden_layers": "many"}, "num_hidden_layers = 'many'"),
    ],
)
def test_what_cannot_work_names_the_remedy(changes: dict[str, Any], remedy: str) -> None:
    with pytest.raises(DeploymentError, match=remedy):
        run(**changes)


def test_a_window_shorter_than_the_context_is_served() -> None:
    run(model_type="qwen2", use_sliding_window=True, sliding_window=64)
    run(model_type="mistral", sliding_window=1024)


def test_yarn_reaches_as_far_as_its_factor() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}
    run(context=32768, rope_parameters=yarn)
    with pytest.raises(DeploymentError, match="32768 positions"):
        run(context=32769, rope_parameters=yarn)
    run(context=32768, rope_scaling={**yarn, "type": "yarn"}, rope_parameters=None)
