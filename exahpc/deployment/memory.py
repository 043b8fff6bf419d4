"""The memory ledger of a rank on an accelerator: what it holds, and what is left for the KV cache. Pure.

Formulas and their sources: docs/explanation/memory.md. T tokens of one plan, S sequences, C context, b bytes of a
number, t and p the grid's tensor- and pipeline-parallel ranks; H, F, V, h, k, d as in `shape`.
"""

from __future__ import annotations

from fractions import Fraction

import msgspec

from exahpc.deployment.grid import BLOCK, Part, parts
from exahpc.deployment.shape import BYTES, ModelShape
from exahpc.deployment.spec import Dtype, Quantization

PLAN_TOKENS = 2048
"""Tokens of one plan on an accelerator (`replica.rank.DEVICE_BUDGET`), unless more sequences decode at once."""
PADDING = 2
"""Rows that decode in one call are padded to the longest; lengths in a call differ so many times at most."""
CHANNELS = 2 * 32 * 4 * 2**20
"""Bytes of a communicator: two directions of 32 channels of NCCL_BUFFSIZE (4 MiB by default)."""


class Case(msgspec.Struct, frozen=True):
    """Which model, how used, on what.

    memory, runtime: bytes of one rank's accelerator, and those that driver and libraries take of it; reserve: the
    share of memory that stays free; sequences: that one replica runs at once; kv_bytes: of one token in all
    layers, None for what the shape says.
    """

    shape: ModelShape
    dtype: Dtype
    quantization: Quantization
    context: int
    sequences: int
    memory: int
    runtime: int
    reserve: float
    kv_bytes: float | None = None

    @property
    def kv_of_shape(self) -> int:
        """Bytes of one token's keys and values in all layers: 2 x layers x k x d x b."""
        shape = self.shape
        return 2 * shape.layers * shape.kv_heads * shape.head_size * BYTES[self.dtype]

    @property
    def kv_per_token(self) -> float:
        return self.kv_of_shape if self.kv_bytes is None else self.kv_bytes


class Rank(msgspec.Struct, frozen=True):
    """Bytes of the fullest rank of a replica; `free` is below 0 where it does not fit."""

    memory: int
    weights: int
    kv: int
    activations: int
    runtime: int
    communication: int
    reserve: int

    @property
    def used(self) -> int:
        return self.weights + self.kv + self.activations + self.runtime + self.communication + self.reserve

    @property
    def free(self) -> int:
        return self.memory - self.used


class Grid(msgspec.Struct, frozen=True):
    tensor_parallel: int
    pipeline_parallel: int

    @property
    def ranks(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel


def rank(case: Case, grid: Grid, tokens: int) -> Rank:
    """The ledger of the fullest rank, with a KV cache of so many tokens a replica."""
    found = [_rank(case, grid, part, tokens, last) for part, last in _stages(case, grid)]
    return max(found, key=lambda one: one.used)


def most_tokens(case: Case, grid: Grid) -> int:
    """Tokens that a replica's KV cache may hold, whole blocks: all ranks have room for their part. 0 for none.

    The cache and what is copied of it in a step both grow with it; scores of a prompt do not. Either may be the
    larger one, so there are two bounds.
    """
    most = []
    for part, last in _stages(case, grid):
        empty = _rank(case, grid, part, 0, last)
        each, copied = _kv(case, part), _copied(case, grid, part)
        scores = _scores(case, grid)
        most.append(min(empty.free / each, (empty.free + scores) / (each + copied)))
    return max(0, int(min(most)) // BLOCK * BLOCK)


def plan_tokens(case: Case, grid: Grid) -> int:
    return max(PLAN_TOKENS, -(-case.sequences // grid.pipeline_parallel) + BLOCK)


def _stages(case: Case, grid: Grid) -> list[tuple[Part, bool]]:
    found = parts(case.shape, grid.tensor_parallel, grid.pipeline_parallel, case.dtype, case.quantization)
    return [(part, number == len(found) - 1) for number, part in enumerate(found)]


def _rank(case: Case, grid: Grid, part: Part, tokens: int, last: bool) -> Rank:
    return Rank(
        memory=case.memory,
        weights=part.weights,
        kv=int(_kv(case, part) * tokens),
        activations=_hidden(case, grid, last) + max(_scores(case, grid), int(_copied(case, grid, part) * tokens)),
        runtime=case.runtime,
        communication=_communication(case, grid),
        reserve=int(case.memory * Fraction(str(case.reserve))),
    )


def _kv(case: Case, part: Part) -> float:
    """Of one cached token on this stage's fullest rank."""
    return part.kv_per_token * case.kv_per_token / case.kv_of_shape


def _copied(case: Case, grid: Grid, part: Part) -> float:
    """Of one cached token, while its blocks are copied together: one layer, the sequences of one of p plans."""
    return PADDING * _kv(case, part) / part.layers / grid.pipeline_parallel


def _scores(case: Case, grid: Grid) -> int:
    """Of a prompt's attention over one context where torch has no fused kernel for it: scores before and after
    softmax, 2 T C h/t b, and keys and values repeated for each head, 2 C h/t d b."""
    shape = case.shape
    heads = -(-shape.heads // grid.tensor_parallel)
    new = min(plan_tokens(case, grid), case.context)
    return 2 * BYTES[case.dtype] * heads * case.context * (new + shape.head_size)


def _hidden(case: Case, grid: Grid, last: bool) -> int:
    """T b (4 H + the larger of an MLP's 3 F/t (x experts of a token) and attention's 2 (h + k) d/t); the logits of
    S/p sequences twice in float32; with INT8 the largest matrix in the dtype of the work."""
    shape, size, tp = case.shape, BYTES[case.dtype], grid.tensor_parallel
    inner = max(shape.mlp * shape.experts_per_token, shape.dense_mlp)
    widest = max(3 * inner, 2 * (shape.heads + shape.kv_heads) * shape.head_size)
    found = plan_tokens(case, grid) * size * (4 * shape.hidden + widest // tp)
    if last:
        found += 2 * 4 * -(-case.sequences // grid.pipeline_parallel) * shape.vocabulary // tp
    if case.quantization == "int8":
        found += max(shape.mlp, shape.dense_mlp, shape.heads * shape.head_size) * shape.hidden * size // tp
    return found


def _communication(case: Case, grid: Grid) -> int:
    """Communicators of the tensor-parallel group and of the pipeline; what a link sends and receives."""
    groups = (grid.tensor_parallel > 1) + (grid.pipeline_parallel > 1)
    link = 2 * plan_tokens(case, grid) * case.shape.hidden * BYTES[case.dtype] * (grid.pipeline_parallel > 1)
    return groups * CHANNELS + link
