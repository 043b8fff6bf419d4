"""Ragged attention over a slot cache.

The new tokens of all sequences lie one after the other in one row [1, T], so linear layers see one matrix and
only attention looks at sequence boundaries. Prefill, parts of a prompt and decoding share an iteration.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's custom

from exahpc.replica.plan import Plan


class SlotCache:
    """Keys and values of this stage's layers on this rank: each [layers, slots, kv_heads, context, head_dim]."""

    def __init__(self, shape: tuple[int, int, int, int, int], dtype: torch.dtype, device: torch.device) -> None:
        self.k, self.v = (_zeros(shape, dtype, device) for _ in range(2))

    def move(self, source: int, target: int, length: int) -> None:
        for cache in (self.k, self.v):
            cache[:, target, :, :length] = cache[:, source, :, :length]

    def wipe(self, slot: int) -> None:
        for cache in (self.k, self.v):
            cache[:, slot] = 0


def _zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros, since masked numbers are still multiplied. On CPUs memory is only taken when touched."""
    if device.type != "cpu":
        return torch.zeros(*shape, dtype=dtype, device=device)
    count = int(np.prod(shape)) * dtype.itemsize
    return torch.from_numpy(np.zeros(count, np.uint8)).view(dtype).view(*shape)


class Run:
    """Neighbouring slots that each have one new token: one attention call.

    at: place of the first in the ragged row; slots: [first, last); longest: cached tokens of the longest, new one
    included; mask: [n, 1, 1, longest], true where a token is seen (None: all are).
    """

    __slots__ = ("at", "count", "longest", "mask", "slots")

    def __init__(self, at: int, first: int, past: list[int], device: torch.device) -> None:
        self.at, self.count = at, len(past)
        self.slots = slice(first, first + self.count)
        self.longest = max(past) + 1
        self.mask: torch.Tensor | None = None
        if min(past) + 1 < self.longest:
            seen = torch.arange(self.longest) <= torch.tensor(past)[:, None]
            self.mask = seen[:, None, None].to(device)


class Chunk:
    """Several new tokens of one sequence. mask: [new, past + new], None when nothing was cached (causal)."""

    __slots__ = ("at", "mask", "new", "past", "slot")

    def __init__(self, at: int, slot: int, past: int, new: int, device: torch.device) -> None:
        self.at, self.slot, self.past, self.new = at, slot, past, new
        self.mask: torch.Tensor | None = None
        if past:
            self.mask = torch.ones(new, past + new, dtype=torch.bool, device=device).tril(past)


class Step:
    """What attention and sampling need to know of a plan, as tensors on the device."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        slots: list[int] = []
        positions: list[int] = []
        sampled: list[int] = []
        self.runs: list[Run] = []
        self.chunks: list[Chunk] = []
        run: tuple[int, int, list[int]] | None = None
        at = 0
        for row in plan.rows:
            new = len(row.ids)
            if new == 1:
                if run and row.slot == run[1] + len(run[2]):
                    run[2].append(row.past)
                else:
                    if run:
                        self.runs.append(Run(*run, device))
                    run = (at, row.slot, [row.past])
            else:
                self.chunks.append(Chunk(at, row.slot, row.past, new, device))
            slots += [row.slot] * new
            positions += range(row.past, row.past + new)
            at += new
            if row.sample:
                sampled.append(at - 1)
        if run:
            self.runs.append(Run(*run, device))
        self.total = at
        self.slots = torch.tensor(slots, device=device)
        self.positions = torch.tensor(positions, device=device)
        self.sampled = torch.tensor(sampled, dtype=torch.int64, device=device)


def attend(
    step: Step,
    cache: SlotCache,
    layer: int,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float | None,
) -> torch.Tensor:
    """q [T, heads, D]; k, v [T, kv_heads, D], all rotated -> [T, heads, D]. Appends k and v to the cache."""
    k_cache, v_cache = cache.k[layer], cache.v[layer]
    k_cache[step.slots, :, step.positions] = k
    v_cache[step.slots, :, step.positions] = v
    heads, kv_heads, dim = q.shape[1], k.shape[1], q.shape[2]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    for run in step.runs:
        # Query heads that share a key/value head become query positions: grouped attention without copies.
        grouped = q[run.at : run.at + run.count].reshape(run.count, kv_heads, heads // kv_heads, dim)
        seen = F.scaled_dot_product_attention(
            grouped,
            k_cache[run.slots, :, : run.longest],
            v_cache[run.slots, :, : run.longest],
            attn_mask=run.mask,
            scale=scale,
        )
        out[run.at : run.at + run.count] = seen.reshape(run.count, heads, dim)
    for chunk in step.chunks:
        end, length = chunk.at + chunk.new, chunk.past + chunk.new
        seen = F.scaled_dot_product_attention(
            q[chunk.at : end].transpose(0, 1)[None],
            k_cache[None, chunk.slot, :, :length],
            v_cache[None, chunk.slot, :, :length],
            attn_mask=chunk.mask,
            is_causal=chunk.mask is None,
            scale=scale,
            enable_gqa=heads != kv_heads,
        )
        out[chunk.at : end] = seen[0].transpose(0, 1)
    return out
