"""The layers of a stage, run without ceremony.

Decoding a token is a few hundred small operations; Hugging Face's forward spends as long around them as in them.
This runs the same modules (norms, AutoTP's sharded matrices, rotary embedding) on the ragged row of tokens, in six
calls a layer. It holds for Llama's shape: with or without biases, and with or without norms on queries and keys.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's custom

from exahpc.replica.engine.attention import PagedAttention, PagedCache, Step
from exahpc.replica.engine.linear import ACTIVATIONS, Norm, product, row_parallel, weight_of
from exahpc.replica.engine.rotary import Rotary


class Decoder:
    """body: a Hugging Face decoder after AutoTP; dtype: of hidden states."""

    def __init__(self, body: Any, dtype: torch.dtype, is_last: bool, attention: PagedAttention) -> None:
        activation = ACTIVATIONS[body.config.hidden_act]
        self._rotary = body.rotary_emb
        self._layers = [
            _Layer(layer, number, dtype, attention, activation) for number, layer in enumerate(body.layers)
        ]
        self._norm = _norm(body.norm) if is_last else None

    def __call__(self, step: Step, cache: PagedCache, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [T, H] -> [T, H]."""
        cos, sin = (x[0].contiguous() for x in self._rotary(hidden[None], step.positions[None]))
        for layer in self._layers:
            hidden = layer(step, cache, hidden, cos, sin)
        if self._norm is None:
            return hidden
        weight, epsilon = self._norm
        return F.rms_norm(hidden, weight.shape, weight.to(hidden.dtype), epsilon)


class _Layer:
    def __init__(
        self, layer: Any, number: int, dtype: torch.dtype, attend: PagedAttention, activation: str
    ) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._number, self._attend = number, attend
        self._dim, self._scale = attention.head_dim, attention.scaling
        self._window: int | None = getattr(
            attention, "sliding_window", getattr(attention.config, "sliding_window", None)
        )
        matrices = [weight_of(m) for m in (attention.q_proj, attention.k_proj, attention.v_proj)]
        self._qkv = product(matrices, work=dtype, norm=_norm(layer.input_layernorm))
        widths = [matrix.data.shape[0] for matrix in matrices]
        self._q, self._k = widths[0], widths[0] + widths[1]
        device = matrices[0].data.device
        heads, kv_heads = widths[0] // self._dim, widths[1] // self._dim
        self._rotate_k: Rotary | None = None
        if hasattr(attention, "q_norm"):
            self._rotate = Rotary(heads, _norm(attention.q_norm), device)
            self._rotate_k = Rotary(kv_heads, _norm(attention.k_norm), device)
        else:
            self._rotate = Rotary(heads + kv_heads, None, device)
        self._o = row_parallel(attention.o_proj, dtype)
        self._gated = product(
            [weight_of(m) for m in (mlp.gate_proj, mlp.up_proj)],
            work=dtype,
            activation=activation,
            norm=_norm(layer.post_attention_layernorm),
        )
        self._down = row_parallel(mlp.down_proj, dtype)

    def __call__(
        self, step: Step, cache: PagedCache, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        qkv, tokens = self._qkv(hidden), len(hidden)
        if self._rotate_k is None:
            self._rotate(qkv[:, : self._k], cos, sin)
        else:
            self._rotate(qkv[:, : self._q], cos, sin)
            self._rotate_k(qkv[:, self._q : self._k], cos, sin)
        heads = qkv.view(tokens, -1, self._dim)
        q, k = self._q // self._dim, self._k // self._dim
        seen = self._attend(
            step,
            cache,
            self._number,
            heads[:, :q],
            heads[:, q:k],
            heads[:, k:],
            scale=self._scale,
            window=self._window,
        )
        hidden = self._o(seen.view(tokens, -1), hidden)
        return self._down(self._gated(hidden), hidden)


def _norm(module: Any) -> Norm:
    return Norm(module.weight.detach(), module.variance_epsilon)
