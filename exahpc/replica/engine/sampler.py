"""Drawing the next token. Random numbers are counted, not streamed: the draw depends on (seed, stream, position)
and the logits alone, so a sequence goes on alike on any replica, in any batch and after it was moved.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from exahpc.replica.plan import Row

_MASK = 2**64 - 1
_CANDIDATES = 512


def uniform(seed: int, stream: int, position: int) -> float:
    """The random number in [0, 1) of one token: Philox4x64 (Salmon et al., SC11), keyed by (seed, stream)."""
    key = np.array([seed & _MASK, stream & _MASK], np.uint64)  # a plain list would pass through float64
    counter = np.array([0, 0, 0, position & _MASK], np.uint64)
    return float(np.random.Generator(np.random.Philox(key=key, counter=counter)).random())


def draw(logits: torch.Tensor, row: Row) -> int:
    """One token from float32 logits [vocabulary] on the host; -1 when they hold no number.

    Greedy at temperature 0. Otherwise the inverse of the cumulated probabilities, in order of probability,
    restricted to the fewest tokens whose probabilities reach top_p (Holtzman et al., 2020).
    """
    best = float(logits.max())
    if not np.isfinite(best):
        return -1
    if row.temperature == 0.0:
        return int(logits.argmax())
    weights = ((logits.double() - best) / row.temperature).exp()
    total, chance = float(weights.sum()), uniform(row.seed, row.stream, row.position)
    enough = row.top_p * total if row.top_p < 1.0 else chance * total
    kept = min(_CANDIDATES, len(weights))
    while True:  # nearly always the first few hundred tokens hold the mass that is asked for
        values, order = weights.topk(kept) if kept < len(weights) else weights.sort(descending=True, stable=True)
        reached = values.cumsum(0)
        if kept == len(weights) or float(reached[-1]) > enough:
            break
        kept = min(len(weights), kept * 8)
    last, mass = kept - 1, total
    if row.top_p < 1.0:
        last = min(last, int(torch.searchsorted(reached, enough)))
        mass = float(reached[last])
    return int(order[min(last, int(torch.searchsorted(reached, chance * mass, right=True)))])


def sample(logits: torch.Tensor, rows: Sequence[Row]) -> list[int]:
    """One token for each row: logits [rows, vocabulary], float32, host memory."""
    if all(row.temperature == 0.0 for row in rows):
        best = logits.max(-1)
        finite = torch.isfinite(best.values)
        return [int(t) if good else -1 for t, good in zip(best.indices.tolist(), finite.tolist(), strict=True)]
    return [draw(one, row) for one, row in zip(logits, rows, strict=True)]
