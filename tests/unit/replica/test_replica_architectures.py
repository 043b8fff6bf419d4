"""A model or grid that was not tested, or cannot work, is refused before a node is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from exahpc.deployment.architectures import ARCHITECTURES, check
from exahpc.errors import DeploymentError

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "num_hidden_layers": 30,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e5},
}


def run(tp: int = 1, pp: int = 1, context: int = 2048, **changes: Any) -> None:
    check({**CONFIG, **changes}, tensor_parallel=tp, pipeline_parallel=pp, context=context, pool="a")


@pytest.mark.parametrize("kind", sorted(ARCHITECTURES))
def test_tested_architectures_pass(kind: str) -> None:
    run(3, 30, model_type=kind)


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"model_type": "gpt2"}, "tested architectures: llama, qwen2, qwen3, mistral"),
        ({"model_type": None}, "tested architectures"),
        ({"tp": 4}, "pool 'a': tensor_parallel = 4.*set tensor_parallel to at most 3"),
        ({"pp": 31}, "set pipeline_parallel to at most 30"),
        ({"context": 9000}, "set model.context to at most 8192"),
        ({"quantization_config": {}}, "quantized"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "rope type 'dynamic'"),
        ({"rope_scaling": {"type": "longrope"}}, "rope type 'longrope'"),
        ({"model_type": "mistral", "sliding_window": 1024}, "sliding window of 1024.*at most 1024"),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 64}, "sliding window"),
        ({"num_hidden_layers": "many"}, "num_hidden_layers = 'many'"),
    ],
)
def test_what_cannot_work_names_the_remedy(changes: dict[str, Any], remedy: str) -> None:
    with pytest.raises(DeploymentError, match=remedy):
        run(**changes)


def test_a_window_that_is_off_or_wide_enough_does_not_matter() -> None:
    run(model_type="qwen2", use_sliding_window=False, sliding_window=64)
    run(model_type="mistral", sliding_window=4096)
    run(model_type="mistral", sliding_window=None)
