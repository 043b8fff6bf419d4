"""The decoder of one pipeline stage: Hugging Face's modules, only this stage's layers, weights mapped.

DeepSpeed has no pipeline for inference, so a stage is a decoder that was cut: built whole without memory (torch's
meta device: what depends on a layer's number comes out right), then layers and parts of other stages taken away.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

import deepspeed
import torch
from torch import nn
from transformers import AutoModel

from exahpc.deployment.families import Family
from exahpc.replica.engine.checkpoint import Checkpoint
from exahpc.replica.engine.experts import Experts
from exahpc.replica.engine.group import settings

_Buffer = tuple[nn.Module, str, torch.Tensor]


def part(body: Any, path: str) -> Any:
    """The part of a model at a dotted attribute path."""
    for name in path.split("."):
        body = getattr(body, name)
    return body


def build(config: Any, family: Family, checkpoint: Checkpoint, layers: tuple[int, int], dtype: torch.dtype) -> Any:
    """The decoder with layers [first, last), its parameters views of the checkpoint (copies if dtypes differ).

    config: Hugging Face's, of the whole model.
    """
    first, last = layers
    with torch.device("meta"):
        body: Any = AutoModel.from_config(config, dtype=dtype, attn_implementation="eager").eval()  # type: ignore[no-untyped-call]
    whole = part(body, family.layers)
    _put(body, family.layers, whole[first:last])
    if first > 0:
        for path in (family.embedding, *family.first):
            _drop(body, path)
    if last < len(whole):
        for path in (family.norm, *family.last):
            _drop(body, path)
    body.config.num_hidden_layers = last - first
    if getattr(body.config, "layer_types", None):
        body.config.layer_types = body.config.layer_types[first:last]
    if family.experts:
        for layer in part(body, family.layers):
            if hasattr(layer.mlp, "experts"):
                layer.mlp.experts = Experts(layer.mlp.experts)
    _fill_buffers(body)
    body.requires_grad_(False)  # whole numbers cannot have gradients
    weights = {}
    for name, _ in body.named_parameters():
        weight = checkpoint[source(name, family, checkpoint, first)]
        weights[name] = weight.to(dtype) if weight.is_floating_point() else weight
    body.load_state_dict(weights, strict=False, assign=True)
    return body


def split(body: Any, dtype: torch.dtype, *, keep_on_host: bool) -> Any:
    """Let AutoTP split the matrices of a body over the ranks of `group.init`. Collective over them.

    keep_on_host: parameters stay where they are, a rank's part a view of the whole.
    """
    held = _buffers(body)
    with open(os.devnull, "w") as null, contextlib.redirect_stdout(null):  # AutoTP prints its policy
        body = deepspeed.init_inference(
            body,
            dtype=dtype,
            tensor_parallel=settings(),
            replace_with_kernel_inject=False,
            keep_module_on_host=keep_on_host,
        ).module
    # It casts buffers to the weights' dtype; rope frequencies in bfloat16 turn later positions by wrong angles.
    _set_buffers(held, next(body.parameters()).device)
    for module in body.modules():
        if isinstance(module, Experts):
            module.sum_once()
    return body


def source(name: str, family: Family, checkpoint: Checkpoint, first: int = 0) -> str:
    """The checkpoint's name of a decoder's parameter whose layers are counted from layer `first` of the model."""
    if name.startswith(family.layers + "."):
        layer, rest = name.removeprefix(family.layers + ".").split(".", 1)
        name = f"{family.layers}.{int(layer) + first}.{rest}"
    for ours, theirs in family.renamed:
        name = name.replace(ours, theirs)
    full = family.prefix + name
    return full if full in checkpoint or name not in checkpoint else name  # some were saved without output layer


def _fill_buffers(body: Any) -> None:
    """Rope frequencies and the like are in no checkpoint: Hugging Face computes them in `_init_weights`.

    Parameters are still without memory, so that nothing else is initialized.
    """
    held = _buffers(body)
    _set_buffers([(module, name, torch.empty_like(tensor, device="cpu")) for module, name, tensor in held], "cpu")
    for module in dict.fromkeys(module for module, _, _ in held):
        body._init_weights(module)


def _buffers(body: nn.Module) -> list[_Buffer]:
    return [
        (module, name, tensor) for module in body.modules() for name, tensor in module.named_buffers(recurse=False)
    ]


def _set_buffers(held: list[_Buffer], device: torch.device | str) -> None:
    for module, name, tensor in held:
        module._buffers[name] = tensor.to(device)


def _put(body: Any, path: str, value: Any) -> None:
    above, _, name = path.rpartition(".")
    setattr(part(body, above) if above else body, name, value)


def _drop(body: Any, path: str) -> None:
    """Put something without effect in the place of a part that belongs to another stage."""
    found = part(body, path)
    if isinstance(found, nn.Embedding):
        _put(body, path, _Zero())
    elif isinstance(found, nn.Module):
        _put(body, path, nn.Identity())
    elif isinstance(found, int | float):  # a factor
        _put(body, path, 1.0)


class _Zero(nn.Module):
    """Adds nothing where an embedding of another stage was added."""

    def forward(self, *_: Any, **__: Any) -> torch.Tensor:
        return torch.zeros(())
