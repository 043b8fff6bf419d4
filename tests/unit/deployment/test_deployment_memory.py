"""The ledger of a rank on an accelerator, against tables made by hand."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exahpc.deployment.accelerators import ACCELERATORS
from exahpc.deployment.grid import BLOCK
from exahpc.deployment.known_models import KNOWN, find
from exahpc.deployment.memory import Case, Grid, most_tokens, rank
from exahpc.deployment.shape import ModelShape
from exahpc.deployment.spec import Quantization
from exahpc.replica.rank import DEVICE_BUDGET

GB, GIB, MIB = 10**9, 2**30, 2**20
ALONE = Grid(1, 1)


def case(model: str, quantization: Quantization = "none", context: int = 2048, **more: float) -> Case:
    plain = {"sequences": 16, "memory": 80 * GB, "runtime": int(0.75 * GIB), "reserve": 0.0, **more}
    shape = ModelShape.of(KNOWN[model])
    return Case(shape=shape, dtype="bfloat16", quantization=quantization, context=context, **plain)  # type: ignore[arg-type]


def test_70b_in_int8_leaves_under_ten_gigabytes_of_an_80_gb_card() -> None:
    """By hand: 80 layers x (2 x 8192 x 128 x 72 + 3 x 8192 x 28672) = 68.45e9 bytes, four a row besides; tables
    2 x 32000 x 8192 x 2 = 1.05e9. Weights alone leave 10.5e9: 20,000 tokens of half a megabyte, ten requests."""
    found = case("llama-2-70b", "int8", kv_bytes=0.5e6)
    ledger = rank(found, ALONE, 0)
    rows = 80 * 4 * (128 * (64 + 16) + 8192 + 2 * 28672 + 8192)
    norms = (2 * 80 + 1) * 8192 * 2
    layers = 80 * (2 * 8192 * 128 * 72 + 3 * 8192 * 28_672)
    assert ledger.weights == pytest.approx(layers + rows + norms + 2 * 32_000 * 8192 * 2, rel=1e-5)
    left = found.memory - ledger.weights
    assert left / 0.5e6 == pytest.approx(20_000, rel=0.05)
    assert left // 0.5e6 // 2000 == 10
    assert left - ledger.runtime < 10 * GB
    tokens = most_tokens(found, ALONE)
    assert tokens * 0.5e6 < 10 * GB
    assert tokens // 2000 in (7, 8)  # what a step needs besides is not free


@pytest.mark.parametrize(
    ("model", "kv"),
    [
        ("llama-2-7b", 512 * 1024),
        ("llama-2-70b", 320 * 1024),
        ("llama-3.1-8b", 128 * 1024),
        ("llama-3.1-405b", 504 * 1024),
        ("qwen2.5-7b", 56 * 1024),
        ("mixtral-8x7b", 128 * 1024),
        ("gemma-2-9b", 336 * 1024),
    ],
)
def test_a_cached_token_takes_2_l_k_d_numbers(model: str, kv: int) -> None:
    assert case(model).kv_per_token == kv


@pytest.mark.parametrize(
    ("model", "billions"),
    [
        ("smollm2-135m", 0.1345),
        ("llama-2-7b", 6.738),
        ("llama-3.1-8b", 8.030),
        ("llama-3.1-70b", 70.554),
        ("llama-3.1-405b", 405.85),
        ("llama-3.2-1b", 1.236),
        ("llama-3.2-3b", 3.213),
        ("mistral-7b", 7.248),
        ("mixtral-8x7b", 46.70),
        ("qwen2.5-0.5b", 0.494),
        ("qwen2.5-7b", 7.616),
        ("qwen2.5-72b", 72.71),
        ("qwen3-8b", 8.19),
        ("qwen3-30b-a3b", 30.53),
        ("gemma-2-9b", 9.24),
        ("gemma-2-27b", 27.23),
    ],
)
def test_known_models_have_their_published_parameters(model: str, billions: float) -> None:
    assert ModelShape.of(KNOWN[model]).parameters / 1e9 == pytest.approx(billions, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("/models/Mistral-7B-Instruct-v0.3/", "mistral-7b"),
        ("Meta-Llama-3-70B", "llama-3-70b"),
        ("Meta-Llama-3.1-70B-Instruct", "llama-3.1-70b"),
        ("smollm2", "smollm2-135m"),
        ("google/gemma-2-9b-it", "gemma-2-9b"),
        ("Llama-2-70b-chat-hf", "llama-2-70b"),
        ("gpt-5", None),
        ("", None),
    ],
)
def test_a_model_is_found_however_it_is_written(name: str, known: str | None) -> None:
    assert find(name) == known


def test_8b_on_one_card_by_hand() -> None:
    """T = C = 4096 capped by the plan's 2048; 16 sequences."""
    ledger = rank(case("llama-3.1-8b", context=4096), ALONE, 10_000)
    assert ledger.kv == 10_000 * 128 * 1024
    hidden = 2048 * 2 * (4 * 4096 + 3 * 14_336)
    logits = 2 * 4 * 16 * 128_256
    scores = 2 * 2 * 32 * 4096 * (2048 + 128)
    assert ledger.activations == hidden + logits + scores
    assert (ledger.communication, ledger.reserve) == (0, 0)
    assert ledger.used + ledger.free == ledger.memory


def test_copied_blocks_count_where_they_are_more_than_scores() -> None:
    found, tokens = case("llama-3.1-8b", context=512), 500_000
    grown = rank(found, ALONE, tokens).activations - rank(found, ALONE, 0).activations
    scores = 2 * 2 * 32 * 512 * (512 + 128)
    assert grown == 2 * tokens * 128 * 1024 // 32 - scores


def test_ranks_that_talk_have_communicators() -> None:
    found = case("llama-3.1-8b")
    link = 2 * 2048 * 4096 * 2
    assert rank(found, Grid(2, 1), 0).communication == 256 * MIB
    assert rank(found, Grid(1, 2), 0).communication == 256 * MIB + link
    assert rank(found, Grid(2, 2), 0).communication == 512 * MIB + link


def test_tensor_parallel_ranks_split_cache_and_scores() -> None:
    found = case("llama-3.1-70b")
    one, four = rank(found, ALONE, 8192), rank(found, Grid(4, 1), 8192)
    assert four.kv == one.kv // 4
    assert four.activations < one.activations / 2


def test_the_plan_is_as_large_as_a_replicas() -> None:
    from exahpc.deployment.memory import PLAN_TOKENS

    assert PLAN_TOKENS == DEVICE_BUDGET


@given(
    st.sampled_from(sorted(KNOWN)),
    st.sampled_from(sorted(ACCELERATORS)),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4, 16]),
    st.sampled_from([512, 4096]),
    st.sampled_from([0.0, 0.05, 0.5]),
)
def test_the_room_fits_and_one_block_more_does_not(
    model: str, device: str, tp: int, pp: int, context: int, reserve: float
) -> None:
    found = msgspec.structs.replace(
        case(model, context=context), memory=ACCELERATORS[device].memory, reserve=reserve
    )
    grid = Grid(min(tp, found.shape.kv_heads), pp)
    tokens = most_tokens(found, grid)
    assert tokens % BLOCK == 0
    if tokens:
        assert rank(found, grid, tokens).free >= 0
    assert rank(found, grid, tokens + BLOCK).free < 0
