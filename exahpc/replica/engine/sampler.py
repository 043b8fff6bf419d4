"""Drawing the next token. Random numbers are counted, not streamed: the draw depends on (seed, stream, position)
and the logits alone, so a sequence goes on alike on any replica, in any batch and after it was moved.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from exahpc.replica.plan import Row

Vector = NDArray[np.float32]
_MASK = 2**64 - 1
_CANDIDATES = 512


def uniform(seed: int, stream: int, position: int) -> float:
    """The random number in [0, 1) of one token: Philox4x64 (Salmon et al., SC11), keyed by (seed, stream)."""
    key = np.array([seed & _MASK, stream & _MASK], np.uint64)  # a plain list would pass through float64
    counter = np.array([0, 0, 0, position & _MASK], np.uint64)
    return float(np.random.Generator(np.random.Philox(key=key, counter=counter)).random())


def draw(logits: Vector, row: Row) -> int:
    """One token from logits [vocabulary]; -1 when they hold no number.

    Greedy at temperature 0. Otherwise the inverse of the cumulated probabilities, in order of probability,
    restricted to the fewest tokens whose probabilities reach top_p (Holtzman et al., 2020).
    """
    best = logits.max()
    if not np.isfinite(best):
        return -1
    if row.sampling.temperature == 0.0:
        return int(logits.argmax())
    weights = np.exp((logits.astype(np.float64) - best) / row.sampling.temperature)
    total, chance = float(weights.sum()), uniform(row.seed, row.stream, row.position)
    enough = row.sampling.top_p * total if row.sampling.top_p < 1.0 else chance * total
    size = len(weights)
    kept = min(_CANDIDATES, size)
    while True:  # nearly always the first few hundred tokens hold the mass that is asked for
        order = np.arange(size) if kept == size else np.argpartition(weights, size - kept)[size - kept :]
        order = order[np.lexsort((order, -weights[order]))]  # of equals the lowest id first
        reached = np.cumsum(weights[order])
        if kept == size or reached[-1] > enough:
            break
        kept = min(size, kept * 8)
    last, mass = kept - 1, total
    if row.sampling.top_p < 1.0:
        last = min(last, int(np.searchsorted(reached, enough)))
        mass = float(reached[last])
    return int(order[min(last, int(np.searchsorted(reached, chance * mass, side="right")))])


def sample(logits: torch.Tensor, rows: Sequence[Row]) -> list[int]:
    """One token for each row: logits [rows, vocabulary], float32, host memory."""
    if all(row.sampling.temperature == 0.0 for row in rows):
        best = logits.max(-1)
        finite = torch.isfinite(best.values)
        return [int(t) if good else -1 for t, good in zip(best.indices.tolist(), finite.tolist(), strict=True)]
    return [draw(one, row) for one, row in zip(logits.numpy(), rows, strict=True)]
