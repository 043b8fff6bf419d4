"""Whole layers in one native call: at a token or two a step, what Python needs between calls is time lost."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence

import torch

from exahpc.replica.engine.attention import PagedCache, Step
from exahpc.replica.engine.layers import Layer
from exahpc.replica.engine.native import api
from exahpc.replica.engine.native.api import CMatrix, CNorm, Keeper

_P, _I, _F = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


class _Layer(ctypes.Structure):
    _fields_ = (
        ("qkv", CMatrix * 3),
        ("o", CMatrix),
        ("gated", CMatrix * 2),
        ("down", CMatrix),
        *((name, CNorm) for name in ("before", "after", "q", "k")),
        *((name, _P) for name in ("k_cache", "v_cache")),
        *((name, _I) for name in ("heads", "kv_heads", "dim", "format", "window", "activation")),
        ("scale", _F),
    )


class _Step(ctypes.Structure):
    _fields_ = (
        *((name, _P) for name in ("cos", "sin", "writes", "tables", "lengths", "starts")),
        *((name, _I) for name in ("tokens", "rotary", "width", "rows", "threads")),
    )


Between = Callable[[], Callable[[], None] | None]


class Stack:
    """See `layers.Layers`. The law of the kernels holds: what comes out for a token depends on its own hidden
    state and what it sees, to the bit."""

    def __init__(self, layers: Sequence[Layer], cache: PagedCache, between: Between = lambda: None) -> None:
        """between: tells what is to be called before each layer now, if anything."""
        self._between = between
        self._keeper, self._parts = Keeper(), [(layer.o, layer.down) for layer in layers]
        self._layers = (_Layer * len(layers))(*(self._layer(x, n, cache) for n, x in enumerate(layers)))
        widest = (max(2 * (x.heads + x.kv_heads) * x.dim, x.gated[0].data.shape[0]) for x in layers)
        self._room, self._threads, self._cache = max(widest), torch.get_num_threads(), cache

    def _layer(self, layer: Layer, number: int, cache: PagedCache) -> _Layer:
        matrix, matrices, norm = self._keeper.matrix, self._keeper.matrices, self._keeper.norm
        return _Layer(
            matrices(layer.qkv),
            matrix(layer.o.weight),
            matrices(layer.gated),
            matrix(layer.down.weight),
            *map(norm, (layer.before, layer.after, layer.q_norm, layer.k_norm)),
            cache.k[number].data_ptr(),
            cache.v[number].data_ptr(),
            layer.heads,
            layer.kv_heads,
            layer.dim,
            api.FORMATS[cache.k.dtype],
            layer.window or api.EVERYTHING,
            api.ACTIVATIONS[layer.activation],
            1.0 / math.sqrt(layer.dim) if layer.scale is None else layer.scale,
        )

    def __call__(self, step: Step, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        tokens = hidden.shape[0]
        work = torch.empty(tokens * self._room)
        told = _Step(
            *(x.data_ptr() for x in (cos, sin, step.writes, step.tables, step.lengths, step.starts)),
            tokens,
            cos.shape[1],
            step.tables.shape[1],
            step.tables.shape[0],
            self._threads,
        )
        library, at, work_at = api.library(), ctypes.addressof(told), work.data_ptr()
        between = self._between()
        alone = self._parts[0][0].add_up is None
        if alone:
            hidden = hidden.clone()
            if between is None:
                library.layers(self._layers, len(self._layers), at, hidden.data_ptr(), work_at)
                return hidden
        halves = library.attention_half, library.feed_forward_half
        for layer, parts in zip(self._layers, self._parts, strict=True):
            if between is not None:
                between()
            if alone:
                library.layers(ctypes.addressof(layer), 1, at, hidden.data_ptr(), work_at)
                continue
            for half, part in zip(halves, parts, strict=True):
                out, x = torch.empty_like(hidden), hidden.data_ptr()
                half(ctypes.addressof(layer), at, x, x if part.first else None, out.data_ptr(), work_at)
                if part.add_up is not None:
                    part.add_up(out)
                hidden = out
        return hidden
