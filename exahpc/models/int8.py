"""Weight-only INT8: symmetric, one scale for each row of a matrix [out, in].

w ~ q * scale with q = round(w / scale) in -127..127 and scale = max |w| of the row / 127, so a number is off by at
most scale / 2 (LLM.int8(), Dettmers et al., 2022, without its activation part). Rows, because the product of a row
is scaled once after it is summed, and because a tensor-parallel split of columns leaves the scales as they are.
"""

from __future__ import annotations

import torch


def scales(weight: torch.Tensor) -> torch.Tensor:
    """float32 [out] of a matrix [out, in]; 1 for a row of zeros."""
    largest = weight.float().abs().amax(1)
    return torch.where(largest > 0, largest / 127, torch.ones_like(largest))


def quantize(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """int8 [out, in]."""
    return (weight.float() / scale[:, None]).round_().clamp_(-127, 127).to(torch.int8)
