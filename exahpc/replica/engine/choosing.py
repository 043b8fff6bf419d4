"""One token for each row of probabilities, given one random number for each: the inverse of the cumulated sums.

All rows at once, exactly, and each row alike whatever the others are: a row's draw never depends on the batch.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's custom
from numpy.typing import NDArray

_BLOCK = 256
_STAGES = (64, 512, 4096)
"""Most likely tokens that are looked at: nearly always the first few hold the mass that is asked for."""


def best(logits: torch.Tensor) -> NDArray[np.int32]:
    """The likeliest token of each row of logits [rows, vocabulary]; -1 where the best is no finite number."""
    tokens, values = likeliest(logits)
    tokens[~np.isfinite(values)] = -1
    return tokens


def likeliest(logits: torch.Tensor) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The first of the largest of each row, and its value: NaN if the row has one."""
    if logits.device.type == "cpu":  # numpy's argmax is vectorized and torch's is not: ten times faster
        numbers = logits.numpy()
        tokens: NDArray[np.int32] = numbers.argmax(-1).astype(np.int32)
        return tokens, numbers[np.arange(len(numbers)), tokens]
    found = logits.max(-1)
    return found.indices.int().cpu().numpy(), found.values.cpu().numpy()


def anywhere(weights: torch.Tensor, chance: torch.Tensor) -> torch.Tensor:
    """Draw from all tokens, in order of id: weights [rows, vocabulary], chance [rows, 1] float64 -> [rows]."""
    rows, size = weights.shape
    if size % _BLOCK:
        weights = F.pad(weights, (0, -size % _BLOCK))
    blocks = weights.view(rows, -1, _BLOCK)
    sums = blocks.sum(-1).double().cumsum(-1)
    target = chance * sums[:, -1:]
    at = _reaches(sums, target)
    before = F.pad(sums, (1, 0)).gather(1, at)
    inside = blocks[torch.arange(rows, device=at.device), at[:, 0]].double().cumsum(-1)
    share = (target - before) / (sums.gather(1, at) - before)  # of this block, whose sum was rounded
    return (at * _BLOCK + _reaches(inside, share * inside[:, -1:]))[:, 0]


def among(weights: torch.Tensor, chance: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Draw from the likeliest tokens only, in order of probability -> [rows].

    weights: [rows, vocabulary]; chance: [rows, 1] float64; top_k: [rows, 1] int64, that many tokens (0: all);
    top_p: [rows, 1] float64, of these the fewest that hold this share of their mass (nucleus sampling, Holtzman et
    al., 2020).
    """
    rows, size = weights.shape
    tokens = torch.empty(rows, dtype=torch.int64, device=weights.device)
    left = torch.arange(rows, device=weights.device)
    for kept in (*(stage for stage in _STAGES if stage < size), size):
        values, ids = weights.topk(kept)
        reached = values.double().cumsum(-1)
        limited = (top_k > 0) & (top_k <= kept)
        limit = torch.where(limited, top_k, kept)
        mass = weights.sum(-1, keepdim=True, dtype=torch.float64)
        mass = torch.where(limited, reached.gather(1, limit - 1), mass)
        last = torch.searchsorted(reached, top_p * mass).minimum(limit - 1)
        picked = _reaches(reached, chance * reached.gather(1, last)).minimum(last)
        enough = (top_k == 0) & (reached[:, -1:] >= top_p * mass)
        done = (limited | enough | (kept == size))[:, 0]
        tokens[left[done]] = ids.gather(1, picked)[done, 0]
        if bool(done.all()):
            break
        left, weights, chance, top_k, top_p = (x[~done] for x in (left, weights, chance, top_k, top_p))
    return tokens


def _reaches(sums: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """First place where cumulated sums exceed the target [rows, 1]; the last that adds anything, if none does."""
    whole = sums[:, -1:].contiguous()
    return torch.searchsorted(sums, target, right=True).minimum(torch.searchsorted(sums, whole))
