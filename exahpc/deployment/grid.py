"""The TP x PP grid and the memory ledger of a replica: who runs which layers, what a rank holds. Pure."""

from __future__ import annotations

from functools import cache

import msgspec

from exahpc.deployment.shape import BYTES, ModelShape
from exahpc.deployment.spec import Dtype, Pool, Quantization

BLOCK = 16
"""Tokens of one block of the KV cache."""

CACHED = 512
"""Cached tokens that a new one looks at, where the work of layers is weighed against that of the output layer."""


class Ledger(msgspec.Struct, frozen=True):
    """Bytes of one replica and of its fullest rank. Activations and the runtime come on top."""

    weights: int
    kv_per_token: int
    kv_tokens: int
    rank_weights: int
    rank_kv: int
    layers: tuple[int, ...]
    """Layers of each pipeline stage."""

    @property
    def kv(self) -> int:
        return self.kv_per_token * self.kv_tokens

    @property
    def total(self) -> int:
        return self.weights + self.kv


def kv_tokens(pool: Pool, context: int) -> int:
    """Tokens that one replica's KV cache holds: as written, else half of what all sequences could fill.

    Always whole blocks: rounded up to a multiple of BLOCK.
    """
    tokens = pool.kv_tokens or max(context, pool.max_sequences * context // 2)
    return -(-tokens // BLOCK) * BLOCK


@cache
def stage_layers(shape: ModelShape, stages: int) -> tuple[int, ...]:
    """Layers of each pipeline stage, such that the slowest is as fast as can be.

    A pipeline runs at the pace of its slowest stage. Work is counted in parameters that a token is multiplied by,
    and attention over CACHED tokens; the last stage has the output layer besides, which is worth many layers where
    a small model has a large vocabulary. That is the balance of decoding, where every row of a step is sampled.
    Every stage has a layer at least (`architectures.check` refuses more stages than layers). What is left over
    goes to later stages: the first one's ranks also schedule.
    """
    if stages == 1:
        return (shape.layers,)
    others = stages - 1
    layer = shape.layer_work + CACHED * shape.look_work

    def slowest(last: int) -> int:
        return max(-(-(shape.layers - last) // others) * layer, last * layer + shape.table)

    last = min(range(shape.layers - others, 0, -1), key=slowest)  # of equals the evenest
    each, left = divmod(shape.layers - last, others)
    return (*(each + (stage >= others - left) for stage in range(others)), last)


def layers_of_stage(shape: ModelShape, stages: int, stage: int) -> tuple[int, int]:
    """The layers [first, last) of one pipeline stage."""
    counts = stage_layers(shape, stages)
    first = sum(counts[:stage])
    return first, first + counts[stage]


def kv_heads_of_rank(shape: ModelShape, ranks: int, rank: int) -> int:
    """Key/value heads of a tensor-parallel rank: whole ones, first ranks take what is left over (as AutoTP)."""
    return shape.kv_heads // ranks + (rank < shape.kv_heads % ranks)


class Part(msgspec.Struct, frozen=True):
    """Bytes of the fullest rank of one pipeline stage. kv_of_layer: of a cached token in one of its layers."""

    layers: int
    weights: int
    kv_of_layer: int

    @property
    def kv_per_token(self) -> int:
        return self.layers * self.kv_of_layer


def parts(
    shape: ModelShape,
    tensor_parallel: int,
    pipeline_parallel: int,
    dtype: Dtype,
    quantization: Quantization = "none",
) -> tuple[Part, ...]:
    """What each pipeline stage's fullest rank holds, on a grid that `architectures.check` found good."""
    size, tp, pp = BYTES[dtype], tensor_parallel, pipeline_parallel
    layer, table = shape.layer_bytes(dtype, quantization), shape.table * size
    heads = kv_heads_of_rank(shape, tp, 0)  # not split: uneven ranks exist
    heads_part = shape.attention / shape.layer_parameters
    layer_of_rank = layer * (heads_part * heads / shape.kv_heads + (1 - heads_part) / tp)
    found = []
    for stage, layers in enumerate(stage_layers(shape, pp)):
        weights = layers * layer_of_rank
        if stage == 0:  # every rank looks tokens up by itself
            weights += table + shape.learned_positions * shape.hidden * size
        if stage == pp - 1 and (pp > 1 or not shape.tied):  # tied: the first stage's embedding once more
            weights += table / tp
        found.append(Part(layers, int(weights), 2 * heads * shape.head_size * size))
    return tuple(found)


def ledger(
    shape: ModelShape, pool: Pool, context: int, dtype: Dtype, quantization: Quantization = "none"
) -> Ledger:
    """Memory of one replica of this pool, whose grid `architectures.check` found good for the model."""
    size, pp = BYTES[dtype], pool.pipeline_parallel
    tokens, copies = kv_tokens(pool, context), shape.tied and pp > 1
    rest = (shape.parameters - shape.layers * shape.layer_parameters) * size
    found = parts(shape, pool.tensor_parallel, pp, dtype, quantization)
    fullest = max(found, key=lambda part: part.weights + part.kv_per_token * tokens)
    return Ledger(
        weights=shape.layers * shape.layer_bytes(dtype, quantization) + rest + copies * shape.table * size,
        kv_per_token=shape.layers * 2 * shape.kv_heads * shape.head_size * size,
        kv_tokens=tokens,
        rank_weights=fullest.weights,
        rank_kv=fullest.kv_per_token * tokens,
        layers=tuple(part.layers for part in found),
    )
