"""Any served family's decoder, run by Hugging Face's own forward after AutoTP, with our attention inside.

The ragged row of tokens goes in as one sequence [1, T] with its positions; only attention knows where sequences
begin and end. Most families reach their attention by transformers' AttentionInterface; `_CALLS` holds how. For a
name that has no mask function transformers builds no masks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from deepspeed.module_inject.layers import TensorParallel_Layer
from torch import nn
from transformers import AttentionInterface
from transformers.models.falcon.modeling_falcon import apply_rotary_pos_emb as rotate_falcon

from exahpc.deployment.families import Family
from exahpc.replica.engine.attention import PagedAttention, PagedCache, Step
from exahpc.replica.engine.body import part

_NAME = "exahpc"


class Generic:
    """body: a Hugging Face decoder after AutoTP; heads: first and end of this rank's key/value heads; dtype: of
    hidden states."""

    def __init__(
        self, body: Any, family: Family, heads: tuple[int, int], dtype: torch.dtype, attention: PagedAttention
    ) -> None:
        self._body, self._attention = body, attention
        self._step: Step
        self._cache: PagedCache
        for number, layer in enumerate(part(body, family.layers)):
            _CALLS[family.call](part(layer, family.attention), _Layer(self, number), heads)
        body.config._attn_implementation = _NAME
        for module in body.modules():  # norms and routers; matrices keep the checkpoint's form (`linear`)
            if not isinstance(module, nn.Linear | nn.Embedding | TensorParallel_Layer):
                for parameter in module.parameters(recurse=False):
                    parameter.data = parameter.data.to(dtype)

    def __call__(self, step: Step, cache: PagedCache, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [T, H] -> [T, H]."""
        self._step, self._cache = step, cache
        out = self._body(inputs_embeds=hidden[None], position_ids=step.positions[None], use_cache=False)
        result: torch.Tensor = out.last_hidden_state[0]
        return result

    def attend(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        scale: float | None,
        window: int | None,
    ) -> torch.Tensor:
        """q [1, heads, T, D]; k, v [1, kv_heads, T, D], all rotated -> [1, T, heads, D]."""
        q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))
        return self._attention(self._step, self._cache, layer, q, k, v, scale=scale, window=window)[None]


class _Layer:
    """What an attention module calls: its layer of the running step."""

    __slots__ = ("_decoder", "_number")

    def __init__(self, decoder: Generic, number: int) -> None:
        self._decoder, self._number = decoder, number

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None, window: int | None = None
    ) -> torch.Tensor:
        return self._decoder.attend(self._number, q, k, v, scale, window)


def _paged(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention function. No served family caps its attention scores."""
    if softcap is not None or attention_mask is not None:
        raise NotImplementedError(f"{type(module).__name__} wants softcap = {softcap} or a mask of its own")
    return module.paged(query, key, value, scaling, sliding_window), None


AttentionInterface.register(_NAME, _paged)


def _interface(attention: Any, layer: _Layer, heads: tuple[int, int]) -> None:
    attention.paged = layer


def _stablelm(attention: Any, layer: _Layer, heads: tuple[int, int]) -> None:
    """A norm for each head, of which AutoTP knows nothing: keep those of this rank's heads."""
    attention.paged = layer
    if attention.qk_layernorm:
        for norm, each in ((attention.q_layernorm, attention.num_key_value_groups), (attention.k_layernorm, 1)):
            norm.norms = norm.norms[heads[0] * each : heads[1] * each]


def _gptj(attention: Any, layer: _Layer, heads: tuple[int, int]) -> None:
    scale = 1.0 / float(attention.scale_attn)

    def attn(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: Any = None
    ) -> tuple[torch.Tensor, None]:
        return layer(query, key, value, scale).transpose(1, 2), None

    attention._attn = attn


def _falcon(attention: Any, layer: _Layer, heads: tuple[int, int]) -> None:
    def forward(
        hidden_states: torch.Tensor, *, position_embeddings: tuple[torch.Tensor, torch.Tensor], **_: Any
    ) -> tuple[torch.Tensor, None]:
        q, k, v = attention._split_heads(attention.query_key_value(hidden_states))  # each [1, T, heads, D]
        copies = k.shape[2] // (heads[1] - heads[0])  # a key comes once for each of its queries
        q, k, v = (x.transpose(1, 2) for x in (q, k[:, :, ::copies], v[:, :, ::copies]))
        q, k = rotate_falcon(q, k, *position_embeddings)  # type: ignore[no-untyped-call]
        return attention.dense(layer(q, k, v, None).flatten(2)), None

    attention.forward = forward


_CALLS: Mapping[str, Callable[[Any, _Layer, tuple[int, int]], None]] = {
    "interface": _interface,
    "stablelm": _stablelm,
    "gptj": _gptj,
    "falcon": _falcon,
}
"""Family.call -> what lets an attention module of the family use our attention."""
