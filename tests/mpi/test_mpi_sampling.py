"""What is drawn, and how likely it was, is the same on every grid, and what Hugging Face says."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mpi_helpers import admit, prompts, run

from tests.families import tiny

GRIDS = ((1, 1), (2, 1), (1, 2))
GREEDY = {"logprobs": 3, "prompt_logprobs": 2}
WAYS: tuple[dict[str, Any], ...] = (
    GREEDY,
    {},
    {"temperature": 0.8, "top_p": 0.9, "logprobs": 0},
    {"temperature": 1.0, "top_k": 10, "min_p": 0.02, "prompt_logprobs": 0},
    {"repetition_penalty": 1.3, "presence_penalty": 0.3, "frequency_penalty": 0.2, "logprobs": 1},
    {"temperature": 0.7, "logit_bias": [[5, 3.0], [6, -100.0]], "frequency_penalty": 1.0},
    {"min_new": 6, "logit_bias": [[7, 100.0]]},
)
STOP = 7
Likelihoods = Callable[[tuple[int, int]], dict[str, Any]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "llama"
    tiny("llama", folder)
    return folder


@pytest.fixture(scope="module")
def drawn(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Likelihoods:
    """grid -> {sequence: [tokens, reason, likelihoods, the prompt's]}, each way with a short and a long prompt."""
    texts = prompts(3)
    wanted = [
        admit(2 * number + i, texts[which], 12, at=number, seed=number, sampling=way, stop_ids=[STOP])
        for number, way in enumerate(WAYS)
        for i, which in enumerate((2, 7))
    ]
    case = {
        "folder": str(model), "sequences": 6, "context": 300, "chunk": 64, "admits": wanted,
        "likelihoods": True,
    }  # fmt: skip

    @functools.cache
    def of(grid: tuple[int, int]) -> dict[str, Any]:
        return run(*grid, [case], tmp_path_factory.mktemp("grid"))[0]

    return of


@pytest.mark.case("B34")
@pytest.mark.parametrize("grid", GRIDS[1:], ids=lambda g: f"{g[0]}x{g[1]}")
def test_every_grid_draws_the_same_tokens_with_the_same_likelihoods(
    grid: tuple[int, int], drawn: Likelihoods
) -> None:
    one, other = drawn(GRIDS[0]), drawn(grid)
    assert one.keys() == other.keys()
    for name, (tokens, reason, likelihoods, prompt) in one.items():
        assert other[name][:2] == [tokens, reason]
        for wanted, got in ((likelihoods, other[name][2]), (prompt, other[name][3])):
            assert [token for token, _, _ in got] == [token for token, _, _ in wanted]
            assert [value for _, value, _ in got] == pytest.approx([value for _, value, _ in wanted], abs=1e-4)
            assert [[t for t, _ in top] for _, _, top in got] == [[t for t, _ in top] for _, _, top in wanted]


def test_likelihoods_are_those_of_hugging_face(model: Path, drawn: Likelihoods) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    hugging_face = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    for number, way in enumerate(WAYS):
        for i, which in enumerate((2, 7)):
            tokens, reason, likelihoods, prompt = drawn(GRIDS[0])[str(2 * number + i)]
            ids = prompts(3)[which]
            with torch.inference_mode():
                whole = torch.log_softmax(hugging_face(torch.tensor([ids + tokens])).logits[0].double(), -1)
            assert [one[0] for one in prompt] == (ids[1:] if "prompt_logprobs" in way else [])
            assert [one[0] for one in likelihoods] == (tokens if way.get("logprobs", -1) >= 0 else [])
            pieces = ((prompt, 0, "prompt_logprobs"), (likelihoods, len(ids) - 1, "logprobs"))
            for found, start, asked in pieces:
                for place, (token, value, top) in enumerate(found, start):
                    assert value == pytest.approx(float(whole[place, token]), abs=1e-3)
                    values, likeliest = whole[place].topk(way[asked])
                    assert [t for t, _ in top] == likeliest.tolist()
                    assert [v for _, v in top] == pytest.approx(values.tolist(), abs=1e-3)
            if way in (GREEDY, {}):
                assert tokens == whole[len(ids) - 1 : -1].argmax(-1).tolist() or reason == "stop"


def test_bias_and_penalties_are_kept_and_stop_tokens_held_back(drawn: Likelihoods) -> None:
    for name in ("10", "11"):
        assert 6 not in drawn(GRIDS[0])[name][0]
    for name in ("12", "13"):
        tokens, reason, _, _ = drawn(GRIDS[0])[name]
        assert (len(tokens), reason, STOP in tokens) == (6, "stop", False)
    for name in ("8", "9"):
        assert drawn(GRIDS[0])[name][0] != drawn(GRIDS[0])[str(int(name) % 2)][0]
