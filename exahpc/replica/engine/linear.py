"""How matrices are multiplied: weights stay as the checkpoint has them, whatever multiplies.

On CPUs the native kernels read the memory-mapped weights, which the replicas of a node share, and work in float32.
Without a compiler, and on accelerators, torch multiplies; what a processor cannot multiply natively (bfloat16
without AVX-512, INT8) is then converted as it is used.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - torch's custom
from deepspeed.module_inject.layers import LinearAllreduce, TensorParallel_Layer
from torch import nn

from exahpc.replica.engine.group import summation
from exahpc.replica.engine.native import api
from exahpc.replica.engine.native.api import Norm, Weight

_FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}
ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu": "gelu", "relu": "relu"} | dict.fromkeys(
    ("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_accurate"), "gelu_tanh"
)
"""Hugging Face's names of activations (`hidden_act`) to those of `product`."""


class Product(Protocol):
    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """x [T, in] -> [T, out] (+ residual [T, out]), all of the work dtype."""


def native(device: torch.device) -> bool:
    """Whether the native kernels work here."""
    return device.type == "cpu" and api.available()


def work_dtype(dtype: torch.dtype) -> torch.dtype:
    """Number format of activations on processors for weights of `dtype`."""
    fast = {
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported,
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported,
    }
    return torch.float32 if api.available() or dtype not in fast or not fast[dtype]() else dtype


def product(
    weights: Sequence[Weight], *, work: torch.dtype, activation: str = "", norm: Norm | None = None
) -> Product:
    """The products of matrices [out, in] with the same input, normalized by `norm` if given.

    Results lie side by side; with an activation (a value of ACTIVATIONS) and two matrices the result is
    activation(first) * second. work: dtype of input and result.
    """
    if work == torch.float32 and native(weights[0].data.device):
        return api.Linear(weights, activation=activation, norm=norm)
    return _Torch([_prepared(weight, work) for weight in weights], work, activation, norm)


class _Torch:
    """The same by torch, on any device."""

    def __init__(self, weights: list[Weight], work: torch.dtype, activation: str, norm: Norm | None) -> None:
        self._weights, self._work = weights, work
        self._activate = _FUNCTIONS[activation] if activation else None
        self._norm = norm and norm._replace(weight=norm.weight.detach().to(work))

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        if self._norm is not None:
            x = F.rms_norm(x, self._norm.weight.shape, self._norm.weight, self._norm.epsilon)
        parts = [self._times(x, weight) for weight in self._weights]
        if self._activate is not None:
            parts[0] = self._activate(parts[0])
            out = parts[0] if len(parts) == 1 else parts[0] * parts[1]
        else:
            out = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        return out if residual is None else residual + out

    def _times(self, x: torch.Tensor, weight: Weight) -> torch.Tensor:
        data = weight.data if weight.data.dtype == self._work else weight.data.to(self._work)
        if weight.scale is None:
            return F.linear(x, data, weight.bias)
        out = F.linear(x, data) * weight.scale
        return out if weight.bias is None else out + weight.bias


def _prepared(weight: Weight, work: torch.dtype) -> Weight:
    """Small things in the dtype of the work; the matrix stays as it is."""
    bias, scale = (None if x is None else x.detach().to(work) for x in (weight.bias, weight.scale))
    return Weight(weight.data.detach(), bias, scale)


def weight_of(module: Any) -> Weight:
    """The matrix of a linear module; of an INT8 one the scales are its buffer `weight_scale`, and `model_dtype` is
    the model's number format (see `Checkpoint.give_scales`)."""
    scale, model = getattr(module, "weight_scale", None), getattr(module, "model_dtype", torch.float32)
    return Weight(module.weight.detach(), module.bias, scale, model)


class Part(NamedTuple):
    """A matrix whose input AutoTP may have split over ranks.

    weight: with the bias where this rank adds it; add_up: sums the ranks' results in place, None for a rank alone;
    first: whether this rank adds what is added once (bias, residual), before the sum: one operation less.
    """

    weight: Weight
    add_up: Callable[[torch.Tensor], None] | None
    first: bool


def part_of(module: Any) -> Part:
    """The matrix of a linear module, as AutoTP left it."""
    weight = weight_of(module)
    add_up = summation(module.mp_group) if isinstance(module, LinearAllreduce) else None
    first = add_up is None or module.mp_group.rank() == 0
    return Part(weight if first else weight._replace(bias=None), add_up, first)


def row_parallel(part: Part, work: torch.dtype) -> Product:
    """The product of such a matrix, summed over the ranks."""
    multiply, add_up, first = product([part.weight], work=work), part.add_up, part.first
    if add_up is None:
        return multiply

    def reduced(x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        out = multiply(x, residual if first else None)
        add_up(out)
        return out

    return reduced


def replace_linears(body: nn.Module, work: torch.dtype) -> None:
    """Let all linear modules of an AutoTP body multiply by `product`: for bodies that run their own forward."""
    linears: list[Any] = [m for m in body.modules() if isinstance(m, nn.Linear | TensorParallel_Layer)]
    for module in linears:
        module.forward = types.MethodType(_forward(row_parallel(part_of(module), work)), module)


def _forward(multiply: Product) -> Callable[[Any, torch.Tensor], torch.Tensor]:
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return multiply(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], -1)

    return forward
