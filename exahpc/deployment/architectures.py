"""The model architectures that are tested, and what each grid needs of a model. Pure; needs no torch.

`up` refuses everything else before a node is asked for: an untested architecture may run and be wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from exahpc.errors import DeploymentError


class Architecture(msgspec.Struct, frozen=True):
    """What is special about one `model_type` of config.json.

    window: the key that switches sliding-window attention on ("" when the window alone does): the replica's
    attention looks at the whole sequence, so the window must not be shorter than the context.
    """

    name: str
    window: str | None = None


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture("Llama"),
    "qwen2": Architecture("Qwen2", window="use_sliding_window"),
    "qwen3": Architecture("Qwen3", window="use_sliding_window"),
    "mistral": Architecture("Mistral", window=""),
}
"""model_type -> constraints. Each entry has its token-identity test in tests/mpi."""

_ROPE = ("default", "linear", "llama3", "yarn")  # the others change with the length of the whole batch


def check(
    config: Mapping[str, Any], *, tensor_parallel: int, pipeline_parallel: int, context: int, pool: str = ""
) -> Architecture:
    """Can this model (the decoded config.json) run on this grid with this context?

    Raises DeploymentError naming the key, the value and the remedy.
    """
    where = f"pool {pool!r}: " if pool else ""
    kind = config.get("model_type")
    if kind not in ARCHITECTURES:
        raise DeploymentError(
            f"model.path: its config.json says model_type {kind!r}; tested architectures: "
            f"{', '.join(ARCHITECTURES)}. Choose a model of one of them"
        )
    found = ARCHITECTURES[str(kind)]
    if "quantization_config" in config:
        raise DeploymentError(
            "model.path: the checkpoint is quantized (quantization_config in config.json): "
            "use its bfloat16, float16 or float32 form"
        )
    heads = _whole(config, "num_attention_heads")
    kv_heads = _whole(config, "num_key_value_heads", heads)
    layers = _whole(config, "num_hidden_layers")
    if tensor_parallel > kv_heads:
        raise DeploymentError(
            f"{where}tensor_parallel = {tensor_parallel}, but the model has {kv_heads} key/value heads: "
            f"set tensor_parallel to at most {kv_heads} and use pipeline_parallel for more ranks"
        )
    if pipeline_parallel > layers:
        raise DeploymentError(
            f"{where}pipeline_parallel = {pipeline_parallel}, but the model has {layers} layers: "
            f"set pipeline_parallel to at most {layers}"
        )
    if tensor_parallel > _whole(config, "vocab_size"):
        raise DeploymentError(f"{where}tensor_parallel = {tensor_parallel} exceeds the vocabulary: lower it")
    longest = config.get("max_position_embeddings")
    if isinstance(longest, int) and context > longest:
        raise DeploymentError(
            f"model.context = {context}, but the model was made for {longest} positions "
            f"(max_position_embeddings): set model.context to at most {longest}"
        )
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind_of_rope = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, Mapping) else "default"
    if kind_of_rope not in _ROPE:
        raise DeploymentError(
            f"model.path: rope type {kind_of_rope!r} in config.json is not tested; known: {', '.join(_ROPE)}"
        )
    window = config.get("sliding_window")
    active = found.window is not None and (found.window == "" or bool(config.get(found.window)))
    if active and isinstance(window, int) and context > window:
        raise DeploymentError(
            f"model.context = {context} exceeds the model's sliding window of {window} tokens: "
            f"set model.context to at most {window}"
        )
    return found


def _whole(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or value < 1:
        raise DeploymentError(f"model.path: config.json has {key} = {value!r}, wanted a positive whole number")
    return value
