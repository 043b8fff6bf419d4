"""Weights laid out for the CPU's matrix kernels (oneDNN).

Decoding reads every weight once per step, and the blocked layout is read two to three times faster. The price is a
private copy: packed replicas of one node do not share the page cache.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

_KINDS = ("Linear", "LinearLayer", "LinearAllreduce")


def packable(dtype: torch.dtype) -> bool:
    """Does this processor have the kernels (AVX-512, or AVX-NE-CONVERT)?"""
    return dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Callable[[torch.Tensor], torch.Tensor]:
    """The product x -> x @ weight.T + bias on a packed copy of weight [out, in], bfloat16."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
    multiply = torch.ops.mkldnn._linear_pointwise

    def apply(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = multiply(x, packed, bias, "none", [], "")
        return result

    return apply


def pack_modules(body: nn.Module) -> None:
    """Pack the matrices of an AutoTP body in place; its row-parallel layers keep their all-reduce."""
    module: Any
    for module in body.modules():
        kind = type(module).__name__
        if kind not in _KINDS:
            continue
        weight, bias = module.weight.data, module.bias
        module.weight = None
        if kind == "LinearAllreduce":
            forward = _reduced(pack_linear(weight), bias, module.mp_group)
        else:
            forward = _plain(pack_linear(weight, bias))
        module.forward = types.MethodType(forward, module)


def _plain(product: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any, torch.Tensor], torch.Tensor]:
    return lambda _, x: product(x)


def _reduced(
    product: Callable[[torch.Tensor], torch.Tensor], bias: Any, group: Any
) -> Callable[[Any, torch.Tensor], torch.Tensor]:
    import deepspeed.comm

    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        out = product(x)
        if group is not None and deepspeed.comm.get_world_size(group) > 1:
            deepspeed.comm.inference_all_reduce(out, group=group)
        return out if bias is None else out + bias

    return forward
