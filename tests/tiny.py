"""A tiny random checkpoint with a real byte-level tokenizer: fast, deterministic, an ordinary folder."""

from __future__ import annotations

import json
from pathlib import Path

TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIALS = ["<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]


def make_tokenizer(folder: Path) -> int:
    """Write a tokenizer of 256 bytes and five special tokens; returns its size."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(s, special=True) for s in SPECIALS])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|begin|>",
        "eos_token": "<|end|>",
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return int(tokenizer.get_vocab_size())


def make_model(folder: Path, kind: str = "llama", *, layers: int = 4, context: int = 4096, seed: int = 0) -> Path:
    """Write a random fp32 model of `kind` (llama, qwen2, qwen3 or mistral) whose greedy text wanders for long."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = make_tokenizer(folder)
    torch.manual_seed(seed)
    config = AutoConfig.for_model(
        kind,
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        head_dim=16,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        tie_word_embeddings=False,
        bos_token_id=256,
        eos_token_id=257,
    )
    model = AutoModelForCausalLM.from_config(config).float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0, 0.2)
        model.lm_head.weight[94:] = 0  # only printable ASCII wins: readable text that goes on until max_tokens
    model.save_pretrained(folder)
    return folder
