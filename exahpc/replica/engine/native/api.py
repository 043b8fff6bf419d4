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
FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int8: 3}
INT8_OF_BFLOAT16 = 4
ACTIVATIONS = {"": 0, "silu": 1, "gelu_tanh": 2, "gelu": 3, "relu": 4}
EVERYTHING = 2**62
_P, _I, _F = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_KINDS = {"P": _P, "I": _I, "F": _F}
_SIGNATURES = {
    "linear": "PIIPPIIPIPII",
    "attend": "PPIIIPIPIPIIPPIPPIFIPII",
    "attention_half": "PPPPPP",
    "feed_forward_half": "PPPPPP",
    "layers": "PIPPP",
}


class CMatrix(ctypes.Structure):
    _fields_ = (
        ("data", _P),
        ("scale", _P),
        ("bias", _P),
        ("rows", _I),
        ("columns", _I),
        ("stride", _I),
        ("format", _I),
    )


class CNorm(ctypes.Structure):
    _fields_ = (("weight", _P), ("epsilon", _F))


@functools.cache
def library() -> Any:
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
    loaded.rounds.argtypes, loaded.rounds.restype = [_I], _I
    return loaded


def available() -> bool:
    """Whether there are kernels for this processor. Compiles them at the first call: some seconds."""
    return library() is not None


class Weight(NamedTuple):
    """A matrix [out, in], float32, bfloat16, float16 or int8, the elements of a row side by side; bias [out] and
    (of int8 rows) scale [out]; model: number format of the whole model, which an int8 matrix does not tell."""

    data: torch.Tensor
    bias: torch.Tensor | None = None
    scale: torch.Tensor | None = None
    model: torch.dtype = torch.float32

    @property
    def format(self) -> int:
        of_bfloat16 = self.data.dtype == torch.int8 and self.model == torch.bfloat16
        return INT8_OF_BFLOAT16 if of_bfloat16 else FORMATS[self.data.dtype]


def rounds(format: int) -> bool:
    """Whether inputs of matrices in this format are rounded to bfloat16: where the processor multiplies such
    numbers (AVX512-BF16), those of bfloat16 models. Sums are float32 in any case."""
    return bool(library().rounds(format))


class Norm(NamedTuple):
    """x * weight / sqrt(mean(x^2) + epsilon), weight [n] (Zhang and Sennrich, 2019)."""

    weight: torch.Tensor
    epsilon: float


class Keeper:
    """Makes C structures, and keeps what they point to for as long as it lives."""

    def __init__(self) -> None:
        self._kept: list[torch.Tensor] = []

    def matrices(self, weights: Sequence[Weight]) -> ctypes.Array[CMatrix]:
        """With the same input. Raises ValueError for what the kernels do not take."""
        if len({(weight.data.dtype, weight.data.shape[1]) for weight in weights}) != 1:
            raise ValueError(f"matrices that differ: {[(w.data.dtype, tuple(w.data.shape)) for w in weights]}")
        return (CMatrix * len(weights))(*map(self.matrix, weights))

    def matrix(self, weight: Weight) -> CMatrix:
        data = weight.data.detach()
        rows, columns = data.shape
        if data.device.type != "cpu" or data.stride(1) != 1 or data.dtype not in FORMATS:
            raise ValueError(f"{data.dtype} weights [{rows}, {columns}] on {data.device}, strides {data.stride()}")
        if (weight.scale is None) != (data.dtype != torch.int8) or any(
            x is not None and x.shape != (rows,) for x in (weight.bias, weight.scale)
        ):
            raise ValueError(f"bias and scale do not belong to weights [{rows}, {columns}] of {data.dtype}")
        self._kept.append(data)
        scale, bias = self._floats(weight.scale), self._floats(weight.bias)
        return CMatrix(data.data_ptr(), scale, bias, rows, columns, data.stride(0), weight.format)

    def norm(self, norm: Norm | None) -> CNorm:
        return CNorm(self._floats(norm.weight), norm.epsilon) if norm else CNorm()

    def _floats(self, tensor: torch.Tensor | None) -> int | None:
        if tensor is None:
            return None
        self._kept.append(tensor.detach().float().contiguous())
        return self._kept[-1].data_ptr()


class Linear:
    """The products of some matrices with the same input, in one call.

    Without `activation` the results lie side by side; with it and one matrix it is applied to the result; with two
    the result is activation(first) * second. norm: of the input. Raises ValueError for what the kernels do not
    take.
    """

    def __init__(self, weights: Sequence[Weight], *, activation: str = "", norm: Norm | None = None) -> None:
        if activation not in ACTIVATIONS or (activation and len(weights) > 2):
            raise ValueError(f"activation {activation!r} of {len(weights)} matrices")
        self._keeper = Keeper()
        self._matrices = self._keeper.matrices(weights)
        self._norm = self._keeper.norm(norm)
        self._arguments = (
            ctypes.addressof(self._matrices),
            len(weights),
            ACTIVATIONS[activation],
            ctypes.addressof(self._norm),
        )
        self._call, self._threads = library().linear, torch.get_num_threads()
        self.rows = weights[0].data.shape[0] if activation else sum(w.data.shape[0] for w in weights)

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """x [T, in] -> [T, out], plus `residual` [T, out] if given; lines may be strided."""
        tokens = x.shape[0]
        out = torch.empty(tokens, self.rows)
        more = (None, 0) if residual is None else (residual.data_ptr(), residual.stride(0))
        self._call(
            *self._arguments,
            x.data_ptr(),
            tokens,
            x.stride(0),
            *more,
            out.data_ptr(),
            self.rows,
            self._threads,
        )
        return out


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
    library().attend(
        k_cache.data_ptr(),
        v_cache.data_ptr(),
        k.shape[1],
        k.shape[2],
        FORMATS[k_cache.dtype],
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
        window or EVERYTHING,
        out.data_ptr(),
        out.stride(0),
        torch.get_num_threads(),
    )
    return out
