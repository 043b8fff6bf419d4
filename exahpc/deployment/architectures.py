"""Can this model run on this grid? Answered before a node is asked for. Pure; needs no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from exahpc.deployment.families import Family
from exahpc.deployment.shape import ModelShape, family_of, whole
from exahpc.errors import DeploymentError

_ROPES = ("default", "linear", "llama3", "yarn")
_BATCH_ROPES = {
    "dynamic": "its frequencies grow with the longest sequence so far",
    "longrope": "its frequencies switch when a sequence passes the original context",
}
"""Rope types that rotate keys of one sequence in two ways: a cached key would depend on when it was computed."""


def check(
    config: Mapping[str, Any], *, tensor_parallel: int, pipeline_parallel: int, context: int, pool: str = ""
) -> Family:
    """Can this model (the decoded config.json) run on this grid with this context?

    Raises DeploymentError naming the key, the value and the remedy.
    """
    where = f"pool {pool!r}: " if pool else ""
    family = family_of(config)
    if "quantization_config" in config:
        raise DeploymentError(
            "model.path: the checkpoint is quantized (quantization_config in config.json): "
            "use its bfloat16, float16 or float32 form"
        )
    for key, why in (
        ("alibi", "attention biased by distance (ALiBi)"),
        ("use_bidirectional_attention", "an encoder's attention"),
    ):
        if config.get(key):
            raise DeploymentError(f"model.path: {key} in config.json: {why} is not served; choose another model")
    shape = ModelShape.of(config)
    _check_grid(shape, tensor_parallel, pipeline_parallel, where)
    _check_positions(config, family, context)
    return family


def _check_grid(shape: ModelShape, tensor_parallel: int, pipeline_parallel: int, where: str) -> None:
    if tensor_parallel > shape.kv_heads:
        raise DeploymentError(
            f"{where}tensor_parallel = {tensor_parallel}, but the model has {shape.kv_heads} key/value heads: "
            f"set tensor_parallel to {_choices(shape.kv_heads)} and use pipeline_parallel for more ranks"
        )
    if pipeline_parallel > shape.layers:
        raise DeploymentError(
            f"{where}pipeline_parallel = {pipeline_parallel}, but the model has {shape.layers} layers: "
            f"set pipeline_parallel to {_choices(shape.layers)}"
        )
    if tensor_parallel > shape.vocabulary:
        raise DeploymentError(f"{where}tensor_parallel = {tensor_parallel} exceeds the vocabulary: lower it")


def _choices(most: int) -> str:
    return "1" if most == 1 else f"at most {most}"


def _check_positions(config: Mapping[str, Any], family: Family, context: int) -> None:
    key = family.keys.get("max_position_embeddings", "max_position_embeddings")
    longest = whole(config, key) if config.get(key) is not None else None
    for rope in _ropes(config):
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind not in _ROPES:
            why = _BATCH_ROPES.get(kind, "not tested")
            raise DeploymentError(
                f"model.path: rope type {kind!r} in config.json is not served: {why}. "
                f"Served: {', '.join(_ROPES)}; a fixed one, as yarn, may stand in for it"
            )
        original = rope.get("original_max_position_embeddings")
        if kind == "yarn" and longest and isinstance(original, int):  # the file may still tell the trained length
            longest = max(longest, int(original * float(rope.get("factor", 1.0))))
    if longest and context > longest:
        raise DeploymentError(
            f"model.context = {context}, but the model was made for {longest} positions "
            f"({key}): set model.context to at most {longest}"
        )


def _ropes(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The rope settings of config.json: one, or one for each kind of layer."""
    found = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if isinstance(found, Mapping):
        nested = [one for one in found.values() if isinstance(one, Mapping)]
        yield from nested or [found]
