"""The experts of a mixture-of-experts layer, each with its own matrices.

Hugging Face stacks all experts into one tensor, which would copy the checkpoint and hide the matrices from AutoTP.
Kept apart they stay views of the mapped file, AutoTP splits them over the ranks like any MLP, and they are
multiplied as all other matrices are (`linear`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from exahpc.replica.engine.group import summation


class Experts(nn.ModuleList):
    """Takes the place of MixtralExperts and Qwen3MoeExperts (`stacked`: one of these, for its sizes)."""

    def __init__(self, stacked: Any) -> None:
        inner, hidden = stacked.intermediate_dim, stacked.hidden_dim
        with torch.device("meta"):
            super().__init__(_Expert(hidden, inner, stacked.act_fn) for _ in range(stacked.num_experts))
        self._add_up: Any = None

    def sum_once(self) -> None:
        """After AutoTP: one all-reduce for all experts of a layer instead of one each."""
        expert: Any
        for expert in self:
            self._add_up = summation(getattr(expert.down_proj, "mp_group", None))
            expert.down_proj.mp_group = None

    def forward(self, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """hidden [T, H]; chosen, weights [T, experts per token] -> [T, H]."""
        out = torch.zeros_like(hidden)
        for number in sorted(set(chosen.flatten().tolist())):
            token, place = torch.where(chosen == number)
            out.index_add_(0, token, self[number](hidden[token]) * weights[token, place, None])
        if self._add_up is not None:
            self._add_up(out)
        return out


class _Expert(nn.Module):
    def __init__(self, hidden: int, inner: int, activate: Any) -> None:
        super().__init__()
        self.gate_proj = _Matrix(hidden, inner, bias=False)
        self.up_proj = _Matrix(hidden, inner, bias=False)
        self.down_proj = _Matrix(inner, hidden, bias=False)
        self.act_fn = activate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
        return result


class _Matrix(nn.Linear):
    def reset_parameters(self) -> None:
        """Nothing: a model has ten thousand of these, and they are filled from the checkpoint."""
