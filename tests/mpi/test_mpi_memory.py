"""The ledger of `exahpc plan` is what ranks really hold, within a twentieth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mpi_helpers import result

from exahpc.deployment.grid import ledger
from exahpc.deployment.shape import ModelShape
from exahpc.deployment.spec import Pool

TOKENS = 16_384


SIZES: dict[str, dict[str, Any]] = {
    "llama": {"intermediate_size": 1536, "tie_word_embeddings": True},
    "mixtral": {"intermediate_size": 768, "num_local_experts": 4, "num_experts_per_tok": 2},
}
"""Grouped-query attention in all; tens of megabytes in bfloat16: large beside a page, small beside a laptop."""


def made(kind: str, folder: Path) -> Path:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        kind,
        vocab_size=1024,
        hidden_size=512,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        **SIZES[kind],
    )
    model: Any = AutoModelForCausalLM.from_config(config)
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("kind", "tp", "pp"),
    [
        ("llama", 2, 1),
        ("mixtral", 1, 2),
        pytest.param("llama", 1, 2, marks=pytest.mark.long),
        pytest.param("mixtral", 2, 1, marks=pytest.mark.long),
    ],
)
def test_weights_and_cache_take_what_the_ledger_says(kind: str, tp: int, pp: int, tmp_path: Path) -> None:
    model = made(kind, tmp_path)
    found = result(tp * pp, "memory_program.py", str(tp), str(pp), str(TOKENS), model)
    shape = ModelShape.of(json.loads((model / "config.json").read_text()))
    pool = Pool(name="a", tensor_parallel=tp, pipeline_parallel=pp, kv_tokens=TOKENS)
    wanted = ledger(shape, pool, 2048, "bfloat16")
    assert found["weights"] == pytest.approx(wanted.weights, rel=0.05)
    assert max(found["kv"]) == pytest.approx(wanted.rank_kv, rel=0.05)
    assert sum(found["kv"]) == pytest.approx(wanted.kv, rel=0.05)
