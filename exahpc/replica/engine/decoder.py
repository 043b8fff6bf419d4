"""The decoder of families with Llama's shape, run without ceremony.

Decoding a token is a few hundred small operations; Hugging Face's forward spends as long around them as in them.
This runs the same modules (norms, AutoTP's sharded matrices, rotary embedding) on the ragged row of tokens. It is
right for Llama's shape: with or without biases, with or without norms on queries and keys, one window or none.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's custom

from exahpc.replica.engine.attention import PagedCache, Step
from exahpc.replica.engine.layers import Layers, norm_of


class Decoder:
    """body: a Hugging Face decoder after AutoTP; layers: what runs its layers."""

    def __init__(self, body: Any, layers: Layers, is_last: bool) -> None:
        self._rotary, self._layers = body.rotary_emb, layers
        self._norm = norm_of(body.norm) if is_last else None

    def __call__(self, step: Step, _cache: PagedCache, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [T, H] -> [T, H]."""
        cos, sin = (x[0].contiguous() for x in self._rotary(hidden[None], step.positions[None]))
        hidden = self._layers(step, hidden, cos, sin)
        if self._norm is None:
            return hidden
        weight, epsilon = self._norm
        return F.rms_norm(hidden, weight.shape, weight.to(hidden.dtype), epsilon)
