"""The TP x PP grid and the memory ledger of a replica: what a model takes, from its config.json alone. Pure.

Formulas (Llama-like decoders; heads h, key/value heads k, head size d, hidden size H, MLP size F, vocabulary V):
attention 2 H h d + 2 H k d, MLP 3 H F, norms 2 H a layer; embedding V H, once more for an untied output layer;
one token of KV cache takes 2 k d numbers a layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from exahpc.deployment.spec import Dtype, Pool, Quantization
from exahpc.errors import DeploymentError

BYTES: Mapping[Dtype, int] = {"bfloat16": 2, "float16": 2, "float32": 4}
BLOCK = 16
"""Tokens of one block of the KV cache."""


class ModelShape(msgspec.Struct, frozen=True):
    """The sizes of a decoder that memory depends on."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    mlp: int
    vocabulary: int
    tied: bool

    @staticmethod
    def of(config: Mapping[str, Any]) -> ModelShape:
        """From a Hugging Face config.json. Raises DeploymentError naming the key that is missing or odd."""
        hidden, heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
        return ModelShape(
            layers=_size(config, "num_hidden_layers"),
            hidden=hidden,
            heads=heads,
            kv_heads=_size(config, "num_key_value_heads", heads),
            head_size=_size(config, "head_dim", hidden // heads),
            mlp=_size(config, "intermediate_size"),
            vocabulary=_size(config, "vocab_size"),
            tied=bool(config.get("tie_word_embeddings", False)),
        )

    @property
    def layer_parameters(self) -> int:
        attention = 2 * self.hidden * self.head_size * (self.heads + self.kv_heads)
        return attention + 3 * self.hidden * self.mlp + 2 * self.hidden

    def layer_bytes(self, dtype: Dtype, quantization: Quantization = "none") -> int:
        """Weights of one layer. INT8: one byte a number of a matrix and four a row; norms stay as they are."""
        if quantization == "none":
            return self.layer_parameters * BYTES[dtype]
        norms, rows = (
            2 * self.hidden,
            self.head_size * (self.heads + 2 * self.kv_heads) + 2 * (self.hidden + self.mlp),
        )
        return self.layer_parameters - norms + 4 * rows + norms * BYTES[dtype]

    @property
    def parameters(self) -> int:
        tables = (1 if self.tied else 2) * self.vocabulary * self.hidden
        return self.layers * self.layer_parameters + tables + self.hidden


def _size(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise DeploymentError(
            f"config.json: {key} = {value!r}: a decoder's config names it as a positive whole number"
        )
    return value


class Ledger(msgspec.Struct, frozen=True):
    """Bytes of one replica and of its fullest rank. Activations and the runtime come on top."""

    weights: int
    kv_per_token: int
    kv_tokens: int
    rank_weights: int
    rank_kv: int

    @property
    def kv(self) -> int:
        return self.kv_per_token * self.kv_tokens

    @property
    def total(self) -> int:
        return self.weights + self.kv


def kv_tokens(pool: Pool, context: int) -> int:
    """Tokens that one replica's KV cache holds: as written, else half of what all sequences could fill.

    Always whole blocks: rounded up to a multiple of BLOCK.
    """
    tokens = pool.kv_tokens or max(context, pool.max_sequences * context // 2)
    return -(-tokens // BLOCK) * BLOCK


def layers_of_stage(layers: int, stages: int, stage: int) -> int:
    """Layers of one pipeline stage: as even as can be, the first stages take what is left over."""
    return layers // stages + (stage < layers % stages)


def ledger(
    shape: ModelShape, pool: Pool, context: int, dtype: Dtype, quantization: Quantization = "none"
) -> Ledger:
    """Memory of one replica of this pool, whose grid `architectures.check` found good for the model."""
    size, tp, pp = BYTES[dtype], pool.tensor_parallel, pool.pipeline_parallel
    tokens = kv_tokens(pool, context)
    per_layer_kv = 2 * shape.kv_heads * shape.head_size * size
    most_layers = layers_of_stage(shape.layers, pp, 0)
    share = -(-shape.kv_heads // tp) / shape.kv_heads  # heads are not split: uneven ranks exist
    table = shape.vocabulary * shape.hidden
    tables = table if shape.tied or pp > 1 else 2 * table
    layer, whole = shape.layer_bytes(dtype, quantization), shape.parameters - shape.layers * shape.layer_parameters
    return Ledger(
        weights=shape.layers * layer + whole * size + (table * size if shape.tied and pp > 1 else 0),
        kv_per_token=shape.layers * per_layer_kv,
        kv_tokens=tokens,
        rank_weights=int(most_layers * layer * share + tables / tp * size),
        rank_kv=int(most_layers * per_layer_kv * share * tokens),
    )
