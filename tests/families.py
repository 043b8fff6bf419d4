"""Tiny random models of every served family, with what is special to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

VOCABULARY = 500
GROUPED = {"num_key_value_heads": 3, "intermediate_size": 256}  # on 2 ranks: 4 and 2 of 6 heads
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": (
        "llama",
        {
            **GROUPED,
            "tie_word_embeddings": False,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 1e4,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 128,
            },
        },
    ),
    "mistral": (
        "mistral",
        {
            **GROUPED,
            "head_dim": 24,
            "sliding_window": 50,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
        },
    ),
    "qwen2": (
        "qwen2",
        {
            **GROUPED,
            "tie_word_embeddings": True,
            "use_sliding_window": True,
            "sliding_window": 40,
            "max_window_layers": 1,
        },
    ),
    "qwen3": (
        "qwen3",
        {
            **GROUPED,
            "head_dim": 16,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 16.0,
                "original_max_position_embeddings": 128,
            },
        },
    ),
    "gemma3": (
        "gemma3_text",
        {
            **GROUPED,
            "head_dim": 16,
            "query_pre_attn_scalar": 24,
            "sliding_window": 32,
            "final_logit_softcapping": 20.0,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "phi": ("phi", {**GROUPED, "qk_layernorm": True}),
    "granite": (
        "granite",
        {
            **GROUPED,
            "embedding_multiplier": 6.0,
            "attention_multiplier": 0.3,
            "residual_multiplier": 0.5,
            "logits_scaling": 4.0,
        },
    ),
    "smollm3": ("smollm3", {**GROUPED, "no_rope_layers": [1, 0, 1], "tie_word_embeddings": True}),
    "stablelm": ("stablelm", {**GROUPED, "use_qkv_bias": True, "qk_layernorm": True}),
    "starcoder2": ("starcoder2", {**GROUPED, "sliding_window": 60, "tie_word_embeddings": True}),
    "opt": ("opt", {"ffn_dim": 256, "word_embed_proj_dim": 48, "num_attention_heads": 3}),
    "gpt_neox": ("gpt_neox", {"intermediate_size": 256, "num_attention_heads": 3}),
    "falcon": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 3, "bias": True}),
    "falcon-7b": ("falcon", {"multi_query": True}),
    "gptj": ("gptj", {"rotary_dim": 8, "num_attention_heads": 3}),
    "mixtral": ("mixtral", {**GROUPED, "num_local_experts": 4, "sliding_window": 70}),
    "qwen3_moe": (
        "qwen3_moe",
        {
            **GROUPED,
            "head_dim": 16,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "mlp_only_layers": [1],
            "norm_topk_prob": True,
        },
    ),
}
"""name -> model_type, and what is special in its config.json. Windows, and contexts before rope scaling, are
shorter than most prompts; key/value heads split unevenly over two ranks."""


def tiny(name: str, path: Path) -> None:
    """A small random checkpoint whose weights are large enough for distinct tokens."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    kind, changes = MODELS[name]
    plain = {"hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 6, "max_position_embeddings": 4096}
    config = AutoConfig.for_model(
        kind,
        **{"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0, **plain, **changes},
    )
    model = AutoModelForCausalLM.from_config(config)
    for p in model.parameters():
        if p.dim() >= 2:
            p.data.normal_(0, 0.1)
        else:
            p.data.add_(0.05 * torch.randn_like(p))
        p.data = p.data.bfloat16().float()  # served in bfloat16 the weights are the same
    if config.tie_word_embeddings:  # else each token would be its own successor
        model.get_input_embeddings().weight.data.mul_(0.125)
    model.save_pretrained(path)
