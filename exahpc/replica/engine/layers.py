"""Layers of Llama's shape: what they are made of, and how torch runs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - torch's custom

from exahpc.replica.engine.attention import PagedAttention, PagedCache, Step
from exahpc.replica.engine.linear import ACTIVATIONS, Part, part_of, product, row_parallel, weight_of
from exahpc.replica.engine.native.api import Norm, Weight


class Layer(NamedTuple):
    """One layer of this rank: a norm before attention and one after; q_norm, k_norm: of each head, before it is
    turned; window: positions that a token sees, its own included; scale: of attention's scores."""

    before: Norm
    qkv: tuple[Weight, Weight, Weight]
    q_norm: Norm | None
    k_norm: Norm | None
    o: Part
    after: Norm
    gated: tuple[Weight, Weight]
    down: Part
    heads: int
    kv_heads: int
    dim: int
    window: int | None
    scale: float | None
    activation: str


class Layers(Protocol):
    def __call__(self, step: Step, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """hidden [T, H]; cos, sin [T, n] of rotary embedding, n <= head size -> hidden [T, H]; all contiguous."""


def layers_of(body: Any) -> list[Layer]:
    """The layers of a Hugging Face decoder after AutoTP."""
    return [_layer(layer, ACTIVATIONS[body.config.hidden_act]) for layer in body.layers]


def _layer(layer: Any, activation: str) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    q, k, v = (weight_of(m) for m in (attention.q_proj, attention.k_proj, attention.v_proj))
    normed = hasattr(attention, "q_norm")
    return Layer(
        before=norm_of(layer.input_layernorm),
        qkv=(q, k, v),
        q_norm=norm_of(attention.q_norm) if normed else None,
        k_norm=norm_of(attention.k_norm) if normed else None,
        o=part_of(attention.o_proj),
        after=norm_of(layer.post_attention_layernorm),
        gated=(weight_of(mlp.gate_proj), weight_of(mlp.up_proj)),
        down=part_of(mlp.down_proj),
        heads=q.data.shape[0] // attention.head_dim,
        kv_heads=k.data.shape[0] // attention.head_dim,
        dim=attention.head_dim,
        window=getattr(attention, "sliding_window", getattr(attention.config, "sliding_window", None)),
        scale=attention.scaling,
        activation=activation,
    )


def norm_of(module: Any) -> Norm:
    return Norm(module.weight.detach(), module.variance_epsilon)


class Composed:
    """The layers call by call, on any device. attention: over `cache`; work: dtype of hidden states."""

    def __init__(
        self, layers: Sequence[Layer], cache: PagedCache, attention: PagedAttention, work: torch.dtype
    ) -> None:
        self._layers = [_Composed(layer, number, cache, attention, work) for number, layer in enumerate(layers)]

    def __call__(self, step: Step, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        for layer in self._layers:
            hidden = layer(step, hidden, cos, sin)
        return hidden


class _Composed:
    def __init__(
        self, layer: Layer, number: int, cache: PagedCache, attention: PagedAttention, work: torch.dtype
    ) -> None:
        self._of, self._number, self._cache, self._attend = layer, number, cache, attention
        self._qkv = product(layer.qkv, work=work, norm=layer.before)
        self._gated = product(layer.gated, work=work, norm=layer.after, activation=layer.activation)
        self._o, self._down = row_parallel(layer.o, work), row_parallel(layer.down, work)

    def __call__(self, step: Step, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        of, tokens = self._of, hidden.shape[0]
        heads = self._qkv(hidden).view(tokens, -1, of.dim)
        parts = torch.split(heads, [of.heads, of.kv_heads, of.kv_heads], 1)
        q, k = (turned(x, cos, sin, norm) for x, norm in zip(parts, (of.q_norm, of.k_norm), strict=False))
        seen = self._attend(step, self._cache, self._number, q, k, parts[2], scale=of.scale, window=of.window)
        hidden = self._o(seen.reshape(tokens, -1), hidden)
        return self._down(self._gated(hidden), hidden)


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, norm: Norm | None) -> torch.Tensor:
    """Rotary embedding (Su et al., 2021) of x [T, heads, D], after a norm of each head; cos, sin [T, n], n <= D:
    the first n elements are turned, element i with i + n / 2."""
    if norm is not None:
        x = F.rms_norm(x, x.shape[2:], norm.weight.to(x.dtype), norm.epsilon)
    turn, rest = x[..., : cos.shape[1]], x[..., cos.shape[1] :]
    half = turn.shape[-1] // 2
    other = torch.cat((-turn[..., half:], turn[..., :half]), -1)
    out = torch.addcmul(turn * cos[:, None], other, sin[:, None])
    return out if rest.shape[-1] == 0 else torch.cat((out, rest), -1)
