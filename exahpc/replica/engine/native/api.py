"""The native kernels as functions of torch tensors.

Whatever stays the same between calls (weights, norms, shapes) is checked and turned into C structures once, when
an object is made; a call passes addresses. Activations are float32 in host memory, one token a line, the elements
of a line side by side.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from exahpc.replica.engine.native import build

log = logging.getLogger(__name__)
_FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int8: 3}
_ACTIVATIONS = {"": 0, "silu": 1, "gelu_tanh": 2, "gelu": 3, "relu": 4}
_EVERYTHING = 2**62
_P, _I, _F = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_KINDS = {"P": _P, "I": _I, "F": _F}
_SIGNATURES = {"linear": "PIIPPIIPIPII", "rotate": "PIIIIIPPP", "attend": "PPIIIPIPIPIIPPIPPIFIPII"}


class _Matrix(ctypes.Structure):
    _fields_ = (
        ("data", _P),
        ("scale", _P),
        ("bias", _P),
        ("rows", _I),
        ("columns", _I),
        ("stride", _I),
        ("format", _I),
    )


class _Norm(ctypes.Structure):
    _fields_ = (("weight", _P), ("epsilon", _F))


@functools.cache
def _library() -> Any:
    """The loaded kernels; None where they cannot be built (the log says why)."""
    path = build.library()
    if path is None:
        return None
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        log.warning("no native kernels, decoding will be several times slower: %s", error)
        return None
    for name, kinds in _SIGNATURES.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = [_KINDS[kind] for kind in kinds], None
    return loaded


def available() -> bool:
    """Whether there are kernels for this processor. Compiles them at the first call: some seconds."""
    return _library() is not None


class Weight(NamedTuple):
    """A matrix [out, in], float32, bfloat16, float16 or int8, the elements of a row side by side; bias [out] and
    (of int8 rows) scale [out]."""

    data: torch.Tensor
    bias: torch.Tensor | None = None
    scale: torch.Tensor | None = None


class Norm:
    """x * weight / sqrt(mean(x^2) + epsilon), weight [n] (Zhang and Sennrich, 2019)."""

    def __init__(self, weight: torch.Tensor | None = None, epsilon: float = 0.0) -> None:
        self._weight = _floats(weight)
        self._made = _Norm(_address(self._weight), epsilon)
        self.address = ctypes.addressof(self._made)


class Linear:
    """The products of some matrices with the same input, in one call.

    Without `activation` the results lie side by side; with it and one matrix it is applied to the result; with two
    the result is activation(first) * second. norm: of the input. Raises ValueError for what the kernels do not
    take.
    """

    def __init__(self, weights: Sequence[Weight], *, activation: str = "", norm: Norm | None = None) -> None:
        formats = {weight.data.dtype for weight in weights}
        if len(formats) != 1 or not formats <= _FORMATS.keys():
            raise ValueError(f"weights of {formats}: one of {list(_FORMATS)} for all")
        if len({weight.data.shape[1] for weight in weights}) != 1:
            raise ValueError(f"weights of different widths: {[tuple(w.data.shape) for w in weights]}")
        if activation not in _ACTIVATIONS or (activation and len(weights) > 2):
            raise ValueError(f"activation {activation!r} of {len(weights)} matrices")
        self._keep: list[Any] = [norm or Norm()]
        self._matrices = (_Matrix * len(weights))(*(self._matrix(weight) for weight in weights))
        self._address, self._count = ctypes.addressof(self._matrices), len(weights)
        self._activation, self._norm = _ACTIVATIONS[activation], self._keep[0].address
        self._call = _library().linear
        self._threads = torch.get_num_threads()
        self.columns = weights[0].data.shape[1]
        self.rows = weights[0].data.shape[0] if activation else sum(w.data.shape[0] for w in weights)

    def _matrix(self, weight: Weight) -> _Matrix:
        data, bias, scale = weight.data.detach(), _floats(weight.bias), _floats(weight.scale)
        rows, columns = data.shape
        if data.device.type != "cpu" or data.stride(1) != 1:
            raise ValueError(f"weights [{rows}, {columns}] on {data.device} with strides {data.stride()}")
        if (scale is None) != (data.dtype != torch.int8) or any(
            x is not None and x.shape != (rows,) for x in (bias, scale)
        ):
            raise ValueError(f"bias and scale do not belong to weights [{rows}, {columns}] of {data.dtype}")
        self._keep += [data, bias, scale]
        return _Matrix(
            data.data_ptr(), _address(scale), _address(bias), rows, columns, data.stride(0), _FORMATS[data.dtype]
        )

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """x [T, in] -> [T, out], plus `residual` [T, out] if given; lines may be strided."""
        out = torch.empty(len(x), self.rows)
        self._call(
            self._address,
            self._count,
            self._activation,
            self._norm,
            x.data_ptr(),
            len(x),
            x.stride(0),
            None if residual is None else residual.data_ptr(),
            0 if residual is None else residual.stride(0),
            out.data_ptr(),
            out.stride(0),
            self._threads,
        )
        return out


def rotate(x: torch.Tensor, heads: int, cos: torch.Tensor, sin: torch.Tensor, norm: Norm) -> None:
    """Rotary embedding in place, after `norm` of each head: x [T, heads x D] (Su et al., 2021).

    cos, sin: contiguous float32 [T, n], n <= D: the first n elements of a head are turned, element i with element
    i + n / 2.
    """
    _library().rotate(
        x.data_ptr(),
        len(x),
        x.stride(0),
        heads,
        x.shape[1] // heads,
        cos.shape[1],
        cos.data_ptr(),
        sin.data_ptr(),
        norm.address,
    )


def attend(
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    writes: torch.Tensor,
    tables: torch.Tensor,
    lengths: torch.Tensor,
    starts: torch.Tensor,
    scale: float,
    window: int | None,
) -> torch.Tensor:
    """Writes k, v [T, kv_heads, D] to a layer's cache, each [blocks, kv_heads, 16, D], float32 or bfloat16; then
    attention of q [T, heads, D] -> [T, heads, D]. D is a multiple of 16. The rest: see `attention.Step`.
    """
    out = torch.empty(q.shape)
    _library().attend(
        k_cache.data_ptr(),
        v_cache.data_ptr(),
        k.shape[1],
        k.shape[2],
        _FORMATS[k_cache.dtype],
        q.data_ptr(),
        q.stride(0),
        k.data_ptr(),
        k.stride(0),
        v.data_ptr(),
        v.stride(0),
        q.shape[1],
        writes.data_ptr(),
        tables.data_ptr(),
        tables.shape[1],
        lengths.data_ptr(),
        starts.data_ptr(),
        len(lengths),
        scale,
        window or _EVERYTHING,
        out.data_ptr(),
        out.stride(0),
        torch.get_num_threads(),
    )
    return out


def _floats(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.detach().float().contiguous()


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
