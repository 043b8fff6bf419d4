"""The output layer: hidden states to logits.

It stays outside of DeepSpeed, split by vocabulary rows: AutoTP's own would copy the whole matrix and reduce all
logits.
"""

from __future__ import annotations

from typing import Any

import torch

from exahpc.deployment.families import Family
from exahpc.replica.engine.body import source
from exahpc.replica.engine.checkpoint import Checkpoint
from exahpc.replica.engine.linear import Product


def matrix(
    checkpoint: Checkpoint, family: Family, config: Any, embedding: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weight [vocabulary, H] and bias [vocabulary] of the output layer.

    embedding: the first stage's, where this stage has it: a tied output layer is that.
    """
    head = next((name for name in (family.head, "lm_head") if f"{name}.weight" in checkpoint), family.head)
    bias = checkpoint[f"{head}.bias"] if f"{head}.bias" in checkpoint else None  # noqa: SIM401 - no dict
    if not config.tie_word_embeddings and f"{head}.weight" in checkpoint:
        return checkpoint[f"{head}.weight"], bias
    if embedding is None:
        embedding = checkpoint[source(f"{family.embedding}.weight", family, checkpoint)]
    return embedding, bias


class OutputLayer:
    """multiply: hidden states [rows, H] -> this rank's slice of the products, see `linear.product`."""

    def __init__(self, multiply: Product, config: Any) -> None:
        self._multiply = multiply
        self._divisor = float(getattr(config, "logits_scaling", None) or 1.0)  # Granite
        self._cap = getattr(config, "final_logit_softcapping", None)  # Gemma

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [rows, H] -> float32 [rows, this rank's slice of the vocabulary]."""
        logits = self._multiply(hidden).float()
        if self._divisor != 1.0:
            logits = logits / self._divisor
        return torch.tanh(logits / self._cap) * self._cap if self._cap else logits
