"""Attention over the paged cache where it lies: blocks are read in place, by the native kernel."""

from __future__ import annotations

import math

import torch

from exahpc.replica.blocks import BLOCK
from exahpc.replica.engine.attention import PagedCache, Step
from exahpc.replica.engine.native import api


def usable(head_dim: int, device: torch.device) -> bool:
    """Whether `native_attention` serves heads of this size on `device`."""
    return BLOCK == 16 and head_dim % 16 == 0 and device.type == "cpu" and api.available()


def cache_dtype(dtype: torch.dtype) -> torch.dtype:
    """Number format of the cache that it reads, for a model in `dtype`: bfloat16 for bfloat16, as other engines
    keep it too, since at long contexts reading it is what takes the time; else float32."""
    return dtype if dtype == torch.bfloat16 else torch.float32


def in_pairs(cache: torch.dtype) -> bool:
    """Whether a cache in this format is multiplied in pairs of bfloat16 numbers, as fast as matrices are."""
    return cache == torch.bfloat16 and api.rounds(api.FORMATS[cache])


def native_attention(
    step: Step,
    cache: PagedCache,
    layer: int,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float | None = None,
    window: int | None = None,
) -> torch.Tensor:
    """See `PagedAttention`. Lines of q, k, v may be strided. The law of the kernels holds here too: what comes out
    for a token depends on its own q and what it sees, to the bit, whatever else the step holds.
    """
    seen = api.attend(
        cache.k[layer],
        cache.v[layer],
        *(_lines(x) for x in (q, k, v)),
        writes=step.writes,
        tables=step.tables,
        lengths=step.lengths,
        starts=step.starts,
        scale=1.0 / math.sqrt(q.shape[2]) if scale is None else scale,
        window=window,
    )
    return seen if seen.dtype == q.dtype else seen.to(q.dtype)


def _lines(x: torch.Tensor) -> torch.Tensor:
    """x in float32, the heads of a token side by side."""
    x = x if x.dtype == torch.float32 else x.float()
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
