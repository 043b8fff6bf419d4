"""Rotary position embedding of heads (Su et al., 2021), in place, after the norm that some models have there."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - torch's custom

from exahpc.replica.engine.linear import Norm, native
from exahpc.replica.engine.native import api


class Rotary:
    """Turns `heads` heads side by side in a line. norm: of each head first, None for none."""

    def __init__(self, heads: int, norm: Norm | None, device: torch.device) -> None:
        self._heads, self._norm = heads, norm
        self._native = api.Norm(*norm) if norm else api.Norm()
        self._by_torch = not native(device)

    def __call__(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """x [T, heads x D]; cos, sin [T, n], contiguous, of the dtype of x: the first n elements of a head are
        turned, element i with i + n / 2."""
        if not self._by_torch:
            api.rotate(x, self._heads, cos, sin, self._native)
            return
        heads = x.view(len(x), self._heads, -1)
        if self._norm is not None:
            heads.copy_(F.rms_norm(heads, heads.shape[2:], self._norm.weight.to(x.dtype), self._norm.epsilon))
        half = cos.shape[1] // 2
        turned = heads[..., : 2 * half]
        other = torch.cat((-turned[..., half:], turned[..., :half]), -1)
        turned.copy_(turned * cos[:, None] + other * sin[:, None])
