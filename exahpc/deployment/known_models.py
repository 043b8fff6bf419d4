"""Models that can be planned for without their files: the sizes in their published config.json. Pure data.

A name is found however it is written: "meta-llama/Llama-3.1-8B-Instruct" is llama-3.1-8b. Gemma 2 is not served
(`families`), only planned for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


def _of(
    kind: str,
    layers: int,
    hidden: int,
    heads: int,
    kv: int,
    mlp: int,
    vocabulary: int,
    positions: int,
    **more: Any,
) -> Mapping[str, Any]:
    return {
        "model_type": kind,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": mlp,
        "vocab_size": vocabulary,
        "max_position_embeddings": positions,
        "tie_word_embeddings": False,
        **more,
    }


_TIED = {"tie_word_embeddings": True}

KNOWN: Mapping[str, Mapping[str, Any]] = {
    "smollm2-135m": _of("llama", 30, 576, 9, 3, 1536, 49_152, 8192, **_TIED),
    "llama-2-7b": _of("llama", 32, 4096, 32, 32, 11_008, 32_000, 4096),
    "llama-2-13b": _of("llama", 40, 5120, 40, 40, 13_824, 32_000, 4096),
    "llama-2-70b": _of("llama", 80, 8192, 64, 8, 28_672, 32_000, 4096),
    "llama-3-8b": _of("llama", 32, 4096, 32, 8, 14_336, 128_256, 8192),
    "llama-3-70b": _of("llama", 80, 8192, 64, 8, 28_672, 128_256, 8192),
    "llama-3.1-8b": _of("llama", 32, 4096, 32, 8, 14_336, 128_256, 131_072),
    "llama-3.1-70b": _of("llama", 80, 8192, 64, 8, 28_672, 128_256, 131_072),
    "llama-3.1-405b": _of("llama", 126, 16_384, 128, 8, 53_248, 128_256, 131_072),
    "llama-3.2-1b": _of("llama", 16, 2048, 32, 8, 8192, 128_256, 131_072, head_dim=64, **_TIED),
    "llama-3.2-3b": _of("llama", 28, 3072, 24, 8, 8192, 128_256, 131_072, head_dim=128, **_TIED),
    "llama-3.3-70b": _of("llama", 80, 8192, 64, 8, 28_672, 128_256, 131_072),
    "mistral-7b": _of("mistral", 32, 4096, 32, 8, 14_336, 32_768, 32_768),
    "mixtral-8x7b": _of(
        "mixtral", 32, 4096, 32, 8, 14_336, 32_000, 32_768, num_local_experts=8, num_experts_per_tok=2
    ),
    "mixtral-8x22b": _of(
        "mixtral", 56, 6144, 48, 8, 16_384, 32_000, 65_536, num_local_experts=8, num_experts_per_tok=2
    ),
    "qwen2.5-0.5b": _of("qwen2", 24, 896, 14, 2, 4864, 151_936, 32_768, **_TIED),
    "qwen2.5-7b": _of("qwen2", 28, 3584, 28, 4, 18_944, 152_064, 32_768),
    "qwen2.5-14b": _of("qwen2", 48, 5120, 40, 8, 13_824, 152_064, 32_768),
    "qwen2.5-32b": _of("qwen2", 64, 5120, 40, 8, 27_648, 152_064, 32_768),
    "qwen2.5-72b": _of("qwen2", 80, 8192, 64, 8, 29_568, 152_064, 32_768),
    "qwen3-8b": _of("qwen3", 36, 4096, 32, 8, 12_288, 151_936, 40_960, head_dim=128),
    "qwen3-14b": _of("qwen3", 40, 5120, 40, 8, 17_408, 151_936, 40_960, head_dim=128),
    "qwen3-32b": _of("qwen3", 64, 5120, 64, 8, 25_600, 151_936, 40_960, head_dim=128),
    "qwen3-30b-a3b": _of(
        "qwen3_moe", 48, 2048, 32, 4, 6144, 151_936, 40_960,
        head_dim=128, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768,
    ),
    "gemma-2-9b": _of("gemma2", 42, 3584, 16, 8, 14_336, 256_000, 8192, head_dim=256, **_TIED),
    "gemma-2-27b": _of("gemma2", 46, 4608, 32, 16, 36_864, 256_000, 8192, head_dim=128, **_TIED),
}  # fmt: skip

_DRESS = re.compile(r"(-(instruct|chat|it|hf|base|pt|v\d+(\.\d+)*|\d{4}))+$")
_ALIASES = (("meta-llama-", "llama-"), ("smollm2", "smollm2-135m"))


def find(name: str) -> str | None:
    """The known model that `name` (of a folder, of a repository) stands for, None if there is none."""
    plain = name.rstrip("/").rsplit("/", 1)[-1].lower().replace("_", "-")
    for form in (plain, _DRESS.sub("", plain)):
        for old, new in _ALIASES:
            if form == old or (old.endswith("-") and form.startswith(old)):
                form = new + form.removeprefix(old)
        if form in KNOWN:
            return form
    return None
