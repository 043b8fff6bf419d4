"""How matrices are multiplied on CPUs.

Weights are kept as the checkpoint has them, memory-mapped and shared by the replicas of a node. What a processor
cannot multiply natively (bfloat16 without AVX-512: ten to hundred times slower than float32) it works on in
float32, weights converted as they are used. `pack` trades the sharing for speed: a private copy in the layout of
the processor's kernels (oneDNN), which decoding reads two to three times faster.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's custom
from deepspeed.module_inject.layers import LinearAllreduce, TensorParallel_Layer
from torch import nn

from exahpc.replica.engine.group import summation

Product = Callable[[torch.Tensor], torch.Tensor]


def work_dtype(dtype: torch.dtype) -> torch.dtype:
    """Number format of activations and KV cache on this processor for weights of `dtype`."""
    native = {
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported,
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported,
    }
    return dtype if dtype not in native or native[dtype]() else torch.float32


def product(
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    work: torch.dtype,
    pack: bool = False,
    scale: torch.Tensor | None = None,
) -> Product:
    """x -> x @ weight.T + bias for weight [out, in]; x and the result are of dtype `work`.

    scale [out], float32: of the rows of an INT8 weight, which is converted as it is used.
    """
    bias = None if bias is None else bias.to(work)
    if scale is not None:
        return _scaled(weight, scale.to(work), bias)
    if weight.dtype == torch.bfloat16 and work != weight.dtype:
        return _single(weight, bias, product(weight.to(work), bias, work=work, pack=True) if pack else None)
    if pack:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.to(work).contiguous())
        multiply = torch.ops.mkldnn._linear_pointwise

        def by_layout(x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = multiply(x, packed, bias, "none", [], "")
            return result

        return by_layout
    if weight.dtype == work:
        return lambda x: F.linear(x, weight, bias)
    return lambda x: F.linear(x, weight.to(work), bias)


def _scaled(weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None) -> Product:
    def apply(x: torch.Tensor) -> torch.Tensor:
        out = F.linear(x, weight.to(scale.dtype)) * scale
        return out if bias is None else out + bias

    return apply


def _single(weight: torch.Tensor, bias: torch.Tensor | None, packed: Product | None) -> Product:
    """One row is bound by reading the matrix: half the bytes beat the faster kernel."""
    work = torch.float32

    def apply(x: torch.Tensor) -> torch.Tensor:
        if x.numel() == weight.shape[1]:
            out = F.linear(x.to(weight.dtype), weight).to(work)
            return out if bias is None else out + bias
        return packed(x) if packed else F.linear(x, weight.to(work), bias)

    return apply


def replace_linears(body: nn.Module, work: torch.dtype, pack: bool) -> None:
    """Let the layers of an AutoTP body multiply by `product`; row-parallel ones keep their all-reduce."""
    linears: list[Any] = [m for m in body.modules() if isinstance(m, nn.Linear | TensorParallel_Layer)]
    for module in linears:
        weight, bias, scale = module.weight.data, module.bias, getattr(module, "weight_scale", None)
        if isinstance(module, LinearAllreduce):
            forward = _reduced(product(weight, work=work, pack=pack, scale=scale), bias, module.mp_group)
        else:
            forward = _plain(product(weight, bias, work=work, pack=pack, scale=scale))
        if pack:
            module.weight = None  # the copy is all that is used
        module.forward = types.MethodType(forward, module)


def _plain(multiply: Product) -> Callable[[Any, torch.Tensor], torch.Tensor]:
    return lambda _, x: multiply(x)


def _reduced(multiply: Product, bias: Any, group: Any) -> Callable[[Any, torch.Tensor], torch.Tensor]:
    add_up = summation(group)

    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        out = multiply(x)
        if add_up is not None:
            add_up(out)
        return out if bias is None else out + bias

    return forward
