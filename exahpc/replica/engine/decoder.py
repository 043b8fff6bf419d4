"""The layers of a stage, run without ceremony.

Decoding a token is a few hundred small operations; Hugging Face's forward spends as long around them as in them.
This runs the same modules (norms, AutoTP's sharded matrices, rotary embedding) in the same order on the ragged row
of tokens. It holds for the architectures in `deployment.architectures`: Llama's shape, with or without biases and
with or without norms on queries and keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's custom

from exahpc.replica.engine.attention import PagedAttention, PagedCache, Step

Function = Callable[[torch.Tensor], torch.Tensor]


class Decoder:
    """body: a Hugging Face decoder after AutoTP; dtype: of hidden states."""

    def __init__(self, body: Any, dtype: torch.dtype, is_last: bool, attention: PagedAttention) -> None:
        self._rotary = body.rotary_emb
        self._layers = [_Layer(layer, number, dtype, attention) for number, layer in enumerate(body.layers)]
        self._norm = _norm(body.norm, dtype) if is_last else None
        self._dtype = dtype

    def __call__(self, step: Step, cache: PagedCache, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [T, H] -> [T, H]."""
        cos, sin = self._rotary(hidden[None], step.positions[None])
        half = cos.shape[-1] // 2
        cos, sin = cos[0, :, None], sin[0, :, None]
        sin = torch.cat((-sin[..., :half], sin[..., half:]), -1)  # the sign of the half that is turned over
        for layer in self._layers:
            hidden = layer(step, cache, hidden, cos, sin, half)
        return hidden if self._norm is None else self._norm(hidden)


class _Layer:
    def __init__(self, layer: Any, number: int, dtype: torch.dtype, attend: PagedAttention) -> None:
        self._attend = attend
        attention, mlp = layer.self_attn, layer.mlp
        self._number, self._dim, self._scale = number, attention.head_dim, attention.scaling
        self._window = getattr(attention, "sliding_window", getattr(attention.config, "sliding_window", None))
        self._before, self._after = (
            _norm(n, dtype) for n in (layer.input_layernorm, layer.post_attention_layernorm)
        )
        self._q, self._k, self._v, self._o = (
            _forward(m) for m in (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
        )
        self._gate, self._up, self._down = (_forward(m) for m in (mlp.gate_proj, mlp.up_proj, mlp.down_proj))
        self._activate = mlp.act_fn
        normed = hasattr(attention, "q_norm")
        self._q_norm = _norm(attention.q_norm, dtype) if normed else None
        self._k_norm = _norm(attention.k_norm, dtype) if normed else None

    def __call__(
        self,
        step: Step,
        cache: PagedCache,
        hidden: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        half: int,
    ) -> torch.Tensor:
        x = self._before(hidden)
        shape = (len(x), -1, self._dim)
        q, k, v = self._q(x).view(shape), self._k(x).view(shape), self._v(x).view(shape)
        if self._q_norm is not None and self._k_norm is not None:
            q, k = self._q_norm(q), self._k_norm(k)
        heads = q.shape[1]
        both = torch.cat((q, k), 1)
        both = torch.addcmul(both * cos, both.roll(half, -1), sin)
        q, k = both[:, :heads], both[:, heads:]
        seen = self._attend(step, cache, self._number, q, k, v, scale=self._scale, window=self._window)
        hidden = hidden + self._o(seen.view(len(x), -1))
        x = self._after(hidden)
        return hidden + self._down(self._activate(self._gate(x)) * self._up(x))


def _norm(module: Any, dtype: torch.dtype) -> Function:
    weight, epsilon = module.weight.detach().to(dtype), module.variance_epsilon
    shape = tuple(weight.shape)
    return lambda x: F.rms_norm(x, shape, weight, epsilon)


def _forward(module: Any) -> Function:
    """Skips the hooks machinery of a module call."""
    forward: Function = module.forward
    return forward
