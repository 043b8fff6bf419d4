"""The sizes of a decoder, from its config.json alone. Pure.

Formulas (heads h, key/value heads k, head size d, hidden size H, MLP size F, vocabulary V): attention
2 H h d + 2 H k d, MLP 3 H F if gated, else 2 H F (times the experts, and their router), norms 2 H a layer;
embedding V H, once more for an untied output layer, learned positions P H. Biases are left out: below a
thousandth.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from exahpc.deployment.families import FAMILIES, Family
from exahpc.deployment.spec import Dtype, Quantization
from exahpc.errors import DeploymentError

BYTES: Mapping[Dtype, int] = {"bfloat16": 2, "float16": 2, "float32": 4}


class ModelShape(msgspec.Struct, frozen=True):
    """What memory and work depend on.

    mlp: inner size of the MLP, of each expert where a layer has several; a token goes through `experts_per_token`
    of them. dense_layers: so many layers of a mixture of experts have one MLP of inner size `dense_mlp` instead.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    mlp: int
    vocabulary: int
    tied: bool
    gated: bool = True
    experts: int = 1
    experts_per_token: int = 1
    dense_layers: int = 0
    dense_mlp: int = 0
    learned_positions: int = 0

    @staticmethod
    def of(config: Mapping[str, Any]) -> ModelShape:
        """From a Hugging Face config.json. Raises DeploymentError naming the key that is missing or odd."""
        kind = str(config.get("model_type", "llama"))
        family = FAMILIES.get(kind, FAMILIES["llama"])

        def size(key: str, default: int | None = None) -> int:
            return whole(config, family.keys.get(key, key), default)

        hidden, heads, layers = size("hidden_size"), size("num_attention_heads"), size("num_hidden_layers")
        shape = ModelShape(
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=_kv_heads(config, kind, heads),
            head_size=size("head_dim", family.head_size or hidden // heads),
            mlp=size("intermediate_size", None if family.gated else 4 * hidden),
            vocabulary=size("vocab_size"),
            tied=bool(config.get("tie_word_embeddings", family.tied)),
            gated=family.gated,
            learned_positions=size("max_position_embeddings") + 2 if kind == "opt" else 0,
        )
        if not family.experts:
            return shape
        counted = family.experts if family.experts in config else "num_local_experts"  # transformers 5 renames it
        return msgspec.structs.replace(
            shape,
            mlp=whole(config, family.expert_size),
            experts=whole(config, counted),
            experts_per_token=whole(config, "num_experts_per_tok"),
            dense_layers=_dense_layers(config, layers),
            dense_mlp=shape.mlp,
        )

    @property
    def table(self) -> int:
        """Parameters of the embedding, or of an untied output layer."""
        return self.vocabulary * self.hidden

    @property
    def attention(self) -> int:
        """Parameters of one layer's attention."""
        return 2 * self.hidden * self.head_size * (self.heads + self.kv_heads)

    @property
    def layer_parameters(self) -> int:
        """Of one layer; the mean where layers differ."""
        return self._mean(self.experts) + self.attention + 2 * self.hidden

    @property
    def layer_work(self) -> int:
        """Parameters of one layer that a token is multiplied by; the mean where layers differ."""
        return self._mean(self.experts_per_token) + self.attention

    @property
    def look_work(self) -> int:
        """Multiplications of one layer's attention for each cached token that a new one looks at."""
        return 2 * self.heads * self.head_size

    @property
    def parameters(self) -> int:
        tables = (1 if self.tied else 2) * self.table + self.learned_positions * self.hidden
        return self.layers * self.layer_parameters + tables + self.hidden

    def layer_bytes(self, dtype: Dtype, quantization: Quantization = "none") -> int:
        """Weights of one layer. INT8: one byte a number of a matrix and four a row; norms and routers stay."""
        size = BYTES[dtype]
        if quantization == "none":
            return self.layer_parameters * size
        kept = self._router + 2 * self.hidden
        rows = self.head_size * (self.heads + 2 * self.kv_heads) + self.hidden + self._mlp_rows
        return self.layer_parameters - kept + 4 * rows + kept * size

    @property
    def _router(self) -> int:
        """Parameters of a layer's router, the mean over layers."""
        return (self.layers - self.dense_layers) * (self.experts > 1) * self.experts * self.hidden // self.layers

    @property
    def _mlp_rows(self) -> int:
        """Rows of the matrices of a layer's MLPs, the mean over layers."""
        wide = 2 if self.gated else 1
        sparse = (self.layers - self.dense_layers) * self.experts * (wide * self.mlp + self.hidden)
        return (sparse + self.dense_layers * (wide * self.dense_mlp + self.hidden)) // self.layers

    def _mean(self, experts: int) -> int:
        """Parameters of a layer's MLPs, so many experts of each sparse layer counted."""
        width = (3 if self.gated else 2) * self.hidden
        router = self.experts * self.hidden if self.experts > 1 else 0
        sparse = (self.layers - self.dense_layers) * (experts * width * self.mlp + router)
        return (sparse + self.dense_layers * width * self.dense_mlp) // self.layers


def whole(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """A positive whole number of config.json."""
    value = config.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise DeploymentError(
            f"model.path: config.json has {key} = {value!r}: this family keeps a positive whole number there"
        )
    return value


def _kv_heads(config: Mapping[str, Any], kind: str, heads: int) -> int:
    if kind != "falcon":
        return whole(config, "num_key_value_heads", heads)
    if config.get("new_decoder_architecture"):
        return whole(config, "num_kv_heads", heads)
    return 1 if config.get("multi_query", True) else heads


def _dense_layers(config: Mapping[str, Any], layers: int) -> int:
    """Layers of a mixture of experts that have none (Qwen's mlp_only_layers, decoder_sparse_step)."""
    step, without = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers") or ()
    return sum(layer in without or (layer + 1) % step != 0 for layer in range(layers))


def family_of(config: Mapping[str, Any]) -> Family:
    """Raises DeploymentError for a model_type that is not served."""
    kind = config.get("model_type")
    if kind not in FAMILIES:
        raise DeploymentError(
            f"model.path: its config.json says model_type {kind!r}; tested architectures: {', '.join(FAMILIES)}. "
            "Choose a model of one of them"
        )
    return FAMILIES[str(kind)]
