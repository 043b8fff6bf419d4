"""Ragged attention over a paged cache.

The new tokens of all sequences lie one after the other in one row [T], so linear layers see one matrix and only
attention looks at sequence boundaries. Prefill, parts of a prompt and decoding share an iteration. Keys and values
lie in blocks that sequences may share; which are whose, a `Step` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's custom
from numpy.typing import NDArray

from exahpc.replica.blocks import BLOCK
from exahpc.replica.plan import Plan
from exahpc.replica.tables import Tables


class PagedCache:
    """Keys and values of this stage's layers on this rank: k, v, each [layers, blocks, kv_heads, BLOCK, head_dim],
    contiguous. Block 0 belongs to nobody and stays zero."""

    def __init__(
        self, layers: int, blocks: int, kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (layers, blocks + 1, kv_heads, BLOCK, head_dim)
        self.k, self.v = (_zeros(shape, dtype, device) for _ in range(2))

    def wipe(self, blocks: Sequence[int]) -> None:
        for cache in (self.k, self.v):
            cache[:, list(blocks)] = 0


def _zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros, since masked numbers are still multiplied. On CPUs memory is only taken when touched."""
    if device.type != "cpu":
        return torch.zeros(*shape, dtype=dtype, device=device)
    count = int(np.prod(shape)) * dtype.itemsize
    return torch.from_numpy(np.zeros(count, np.uint8)).view(dtype).view(*shape)


class Step:
    """A plan as the arrays that attention and sampling need: the contract between scheduler and kernels.

    T: tokens, R: rows (sequences) of the plan; contiguous and on `device` unless said otherwise.

    total: T; positions: [T] int64, place of each token in its sequence (rotary embedding, causality);
    writes: [T] int64, where its key and value go: block * BLOCK + place in the block;
    tables: [R, W] int32, the blocks of each row's sequence in order, W of the longest, padded with block 0;
    lengths: [R] int32, cached tokens of each row's sequence, the new ones included;
    starts: [R + 1] int32, the row's tokens are [starts[r], starts[r + 1]); token i of row r has position
    lengths[r] - (starts[r + 1] - starts[r]) + i and sees all positions up to its own;
    decoding: the first so many rows have one new token each, the others more;
    logits: [lines] int64, tokens after which logits are wanted, see `Row.lines`, in order of rows;
    host_lengths, host_starts: the same in host memory, numpy; prepared: room for what an implementation of
    `PagedAttention` makes once a step.
    """

    def __init__(self, plan: Plan, tables: Tables, device: torch.device) -> None:
        rows = plan.rows
        slots = [row.slot for row in rows]
        news = np.array([len(row.ids) for row in rows], np.int32)
        past = np.array([row.past for row in rows], np.int32)
        starts = np.zeros(len(rows) + 1, np.int32)
        np.cumsum(news, out=starts[1:])
        lengths = past + news
        width = -(-int(lengths.max()) // BLOCK)
        blocks = tables.blocks[slots, :width]
        of = np.repeat(np.arange(len(rows)), news)
        positions = np.arange(starts[-1]) - (starts[:-1] - past)[of]
        writes = blocks[of, positions // BLOCK].astype(np.int64) * BLOCK + positions % BLOCK
        self.total, self.device = int(starts[-1]), device
        self.decoding = int((news == 1).sum())
        self.host_lengths, self.host_starts = lengths, starts
        self.positions, self.writes = self.to_device(positions), self.to_device(writes)
        self.tables, self.lengths, self.starts = (self.to_device(x) for x in (blocks, lengths, starts))
        lines = [np.arange(end - row.lines, end) for row, end in zip(rows, starts[1:], strict=True) if row.lines]
        self.logits = self.to_device(np.concatenate(lines) if lines else np.zeros(0, np.int64))
        self.prepared: Any = None

    @classmethod
    def still(cls, rows: int, width: int, device: torch.device) -> Step:
        """A decoding step of a fixed size, its tensors to be filled in place; it has no `host_` arrays and lines.
        For `graphs`."""
        step = cls.__new__(cls)
        step.total = step.decoding = rows
        step.device, step.prepared = device, None
        step.positions, step.writes = (torch.zeros(rows, dtype=torch.int64, device=device) for _ in range(2))
        step.lengths = torch.ones(rows, dtype=torch.int32, device=device)
        step.tables = torch.zeros(rows, width, dtype=torch.int32, device=device)
        step.starts = torch.arange(rows + 1, dtype=torch.int32, device=device)
        return step

    def to_device(self, array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)


class PagedAttention(Protocol):
    """Attention of a step's tokens over all cached ones. The law: tests/unit/replica/test_replica_attention.py."""

    def __call__(
        self,
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
        """q [T, heads, D]; k, v [T, kv_heads, D], all rotated, of the cache's dtype -> [T, heads, D].

        First writes k and v of all tokens to the cache, then reads: a row may see what another row of this step
        wrote. Head h reads key/value head h // (heads / kv_heads). scale: of the scores, 1/sqrt(D) if None;
        window: a token sees only so many positions, its own included.
        """


def gather_attention(
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
    """The reference, on any device: copies the blocks of each sequence together, then torch's attention."""
    groups = _groups(step, k.shape[1])
    kv_heads, dim = k.shape[1:]
    k_cache, v_cache = (c[layer].view(-1, BLOCK * dim) for c in (cache.k, cache.v))  # [block x kv head, ...]
    for new, blocks in ((k, k_cache), (v, v_cache)):
        blocks.view(-1, dim).index_copy_(0, groups.writes, new.reshape(-1, dim))
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    for group in groups.all:
        count = group.count
        keys, values = (c[group.blocks].view(count, kv_heads, -1, dim) for c in (k_cache, v_cache))
        mask = group.seen(window)
        if group.new == 1:
            # Query heads that share a key/value head become query positions: grouped attention without copies.
            part = F.scaled_dot_product_attention(
                q[group.tokens].view(count, kv_heads, -1, dim), keys, values, attn_mask=mask, scale=scale
            )
            out[group.tokens] = part.reshape(count, -1, dim)
        else:
            part = F.scaled_dot_product_attention(
                q[group.tokens].transpose(0, 1)[None],
                keys,
                values,
                attn_mask=mask,
                scale=scale,
                enable_gqa=q.shape[1] != kv_heads,
            )
            out[group.tokens] = part[0].transpose(0, 1)
    return out


class _Group:
    """Rows that share a call: one with several new tokens, or decoding ones of similar length.

    tokens: their places in the ragged row; blocks: [rows x kv heads x width] lines of the cache.
    """

    def __init__(
        self,
        tokens: torch.Tensor | slice,
        new: int,
        lengths: torch.Tensor,
        tables: torch.Tensor,
        heads: torch.Tensor,
    ) -> None:
        self.tokens, self.new, self.count = tokens, new, len(lengths)
        self._lengths, self._length = lengths, tables.shape[1] * BLOCK
        self._masks: dict[int | None, torch.Tensor] = {}
        self.blocks = (tables.long()[:, None] * len(heads) + heads[:, None]).reshape(-1)

    @classmethod
    def of(cls, step: Step, rows: NDArray[np.int64], heads: torch.Tensor) -> _Group:
        first, last = int(rows[0]), int(rows[-1])
        starts, lengths = step.host_starts, step.host_lengths
        width = -(-int(lengths[rows].max()) // BLOCK)
        index = step.to_device(rows)
        tokens: torch.Tensor | slice = slice(int(starts[first]), int(starts[last + 1]))
        if last - first + 1 != len(rows):
            tokens = step.to_device(starts[rows].astype(np.int64))
        new = int(starts[first + 1] - starts[first])
        return cls(tokens, new, step.lengths[index], step.tables[index, :width], heads)

    def seen(self, window: int | None) -> torch.Tensor:
        """[rows, 1, new, length], true where a token sees a position."""
        if window not in self._masks:
            device = self._lengths.device
            at = torch.arange(self._length, device=device)
            own = self._lengths[:, None] - self.new + torch.arange(self.new, device=device)
            seen = at <= own[..., None]
            if window is not None:
                seen &= at > own[..., None] - window
            self._masks[window] = seen[:, None]
        return self._masks[window]


class _Groups:
    def __init__(self, step: Step, kv_heads: int, still: bool = False) -> None:
        heads = torch.arange(kv_heads, device=step.device)
        writes = step.writes[:, None]
        self.writes = ((writes // BLOCK * kv_heads + heads) * BLOCK + writes % BLOCK).reshape(-1)
        if still:
            self.all = [_Group(slice(0, step.total), 1, step.lengths, step.tables, heads)]
            return
        # Rows are padded to the longest of their call, so lengths within a call differ twofold at most.
        sizes = np.frexp(step.host_lengths[: step.decoding].astype(float))[1]
        rows = [np.flatnonzero(sizes == size) for size in np.unique(sizes)]
        rows += [np.array([row]) for row in range(step.decoding, len(step.host_lengths))]
        self.all = [_Group.of(step, one, heads) for one in rows]


def prepare_still(step: Step, kv_heads: int) -> None:
    """Prepare a `Step.still` for `gather_attention` from what its tensors hold, by work on the device alone."""
    step.prepared = _Groups(step, kv_heads, still=True)


def _groups(step: Step, kv_heads: int) -> _Groups:
    if not isinstance(step.prepared, _Groups):
        step.prepared = _Groups(step, kv_heads)
    return step.prepared
