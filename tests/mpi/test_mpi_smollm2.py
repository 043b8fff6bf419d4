"""A real model, with heads that do not divide evenly, gives Hugging Face's tokens on every grid."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from mpi_helpers import admit, generate, run

from exahpc.launch import place

MODEL = Path(os.environ.get("EXAHPC_TEST_MODEL", place.cache() / "smollm2"))
NEW = (12, 8, 10, 6)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    if not (MODEL / "config.json").exists():
        pytest.skip(f"no model in {MODEL}: run `make model`, or set EXAHPC_TEST_MODEL")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    texts = ("What is the capital of France?", "Count to ten.", "Why is the sky blue? " * 12, "Hello")
    chats = [[{"role": "user", "content": text}] for text in texts]
    found = [tokenizer.apply_chat_template(c, add_generation_prompt=True, return_dict=False) for c in chats]
    assert all(isinstance(token, int) for ids in found for token in ids)
    return found


@pytest.fixture(scope="module")
def wanted(prompts: list[list[int]]) -> list[list[int]]:
    return generate(MODEL, list(zip(prompts, NEW, strict=True)))


def case(prompts: list[list[int]], **more: Any) -> dict[str, Any]:
    admits = [admit(i, ids, new, at=i) for i, (ids, new) in enumerate(zip(prompts, NEW, strict=True))]
    return {"folder": str(MODEL), "sequences": 3, "context": 256, "chunk": 64, "admits": admits, **more}


@pytest.mark.parametrize(
    "grid",
    [
        (2, 1),
        pytest.param((1, 1), marks=pytest.mark.long),
        pytest.param((1, 2), marks=pytest.mark.long),
        pytest.param((1, 3), marks=pytest.mark.long),
    ],
    ids=lambda g: f"{g[0]}x{g[1]}",
)
def test_tokens_are_those_of_hugging_face(
    grid: tuple[int, int], prompts: list[list[int]], wanted: list[list[int]], tmp_path: Path
) -> None:
    (got,) = run(*grid, [case(prompts)], tmp_path)
    assert [got[str(i)][0] for i in range(len(NEW))] == wanted


@pytest.mark.long
def test_bfloat16_text_is_likely_text(prompts: list[list[int]], wanted: list[list[int]], tmp_path: Path) -> None:
    """Rounding may pick another token; then both were nearly equally likely (teacher-forced, float32)."""
    import torch
    from transformers import AutoModelForCausalLM

    (got,) = run(1, 1, [case(prompts, dtype="bfloat16")], tmp_path)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).requires_grad_(False)
    for number, (ids, best) in enumerate(zip(prompts, wanted, strict=True)):
        tokens = got[str(number)][0]
        assert len(tokens) == len(best)
        logits = model(torch.tensor([ids + tokens])).logits[0, len(ids) - 1 : -1]
        chosen = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
        assert float((logits.max(-1).values - chosen).max()) < 0.5, json.dumps([tokens, best])
