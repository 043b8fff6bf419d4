"""The served model families: where each keeps its sizes (config.json), its tensors (checkpoint) and its parts
(Hugging Face's modules). Pure data; needs no torch.

A family enters this table with its token-identity test in tests/mpi: an untested one may run and be wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec


class Family(msgspec.Struct, frozen=True):
    """One `model_type` of config.json; what is not said is as in Llama.

    Sizes in config.json: `keys` renames them; `tied` is the default of tie_word_embeddings; `gated`: the MLP has
    three matrices, not two; `head_size`: default of head_dim, 0 for hidden size / heads; `experts`: the key that
    counts them, "" for a dense MLP; `expert_size`: the key of an expert's inner size.

    Parts of the decoder that AutoModel builds, as dotted attribute paths: `layers`, `embedding`, `norm`,
    `attention` (of a layer). `first` and `last` name what only the first or last pipeline stage has besides
    embedding and norm. Tensors in the checkpoint: `prefix` goes before the decoder's names, `renamed` replaces
    parts of them; `head` is the output layer.

    `call`: how attention is reached, see `engine.generic`. `fast`: `engine.decoder` runs it.
    """

    name: str
    example: str
    keys: Mapping[str, str] = MappingProxyType({})
    tied: bool = False
    gated: bool = True
    head_size: int = 0
    experts: str = ""
    expert_size: str = "intermediate_size"
    layers: str = "layers"
    embedding: str = "embed_tokens"
    norm: str = "norm"
    attention: str = "self_attn"
    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    prefix: str = "model."
    renamed: tuple[tuple[str, str], ...] = ()
    head: str = "lm_head"
    call: str = "interface"
    fast: bool = False
    limits: str = ""
    """What the family's users must know, for the reference page."""


FAMILIES: Mapping[str, Family] = {
    "llama": Family("Llama", "Llama-3.1-8B, SmolLM2", fast=True),
    "mistral": Family("Mistral", "Mistral-7B", fast=True),
    "qwen2": Family("Qwen2", "Qwen2.5-7B", fast=True),
    "qwen3": Family("Qwen3", "Qwen3-8B", head_size=128, fast=True),
    "gemma3_text": Family(
        "Gemma 3", "gemma-3-1b", tied=True, head_size=256, limits="text models (`model_type` gemma3_text)"
    ),
    "phi": Family(
        "Phi", "phi-2", gated=False, norm="final_layernorm", limits="phi-1, phi-1.5 and phi-2; not phi3"
    ),
    "granite": Family("Granite", "granite-3.3-8b", first=("embedding_multiplier",)),
    "smollm3": Family("SmolLM3", "SmolLM3-3B", tied=True),
    "stablelm": Family("StableLM", "stablelm-2-12b", call="stablelm"),
    "starcoder2": Family("StarCoder2", "starcoder2-7b", tied=True, gated=False),
    "opt": Family(
        "OPT",
        "opt-6.7b",
        keys={"intermediate_size": "ffn_dim"},
        tied=True,
        gated=False,
        layers="decoder.layers",
        embedding="decoder.embed_tokens",
        norm="decoder.final_layer_norm",
        first=("decoder.embed_positions", "decoder.project_in"),
        last=("decoder.project_out",),
    ),
    "gpt_neox": Family(
        "GPT-NeoX",
        "pythia-6.9b",
        gated=False,
        embedding="embed_in",
        norm="final_layer_norm",
        attention="attention",
        prefix="gpt_neox.",
        head="embed_out",
    ),
    "falcon": Family(
        "Falcon",
        "falcon-40b",
        keys={"intermediate_size": "ffn_hidden_size"},
        tied=True,
        gated=False,
        layers="h",
        embedding="word_embeddings",
        norm="ln_f",
        attention="self_attention",
        prefix="transformer.",
        call="falcon",
        limits="without ALiBi; models with one key/value head for all (falcon-7b): tensor_parallel = 1",
    ),
    "gptj": Family(
        "GPT-J",
        "gpt-j-6b",
        keys={
            "num_hidden_layers": "n_layer",
            "hidden_size": "n_embd",
            "num_attention_heads": "n_head",
            "intermediate_size": "n_inner",
            "max_position_embeddings": "n_positions",
        },
        gated=False,
        layers="h",
        embedding="wte",
        norm="ln_f",
        attention="attn",
        prefix="transformer.",
        call="gptj",
    ),
    "mixtral": Family(
        "Mixtral",
        "Mixtral-8x7B",
        experts="num_local_experts",
        renamed=(
            (".mlp.", ".block_sparse_moe."),
            (".gate_proj.", ".w1."),
            (".down_proj.", ".w2."),
            (".up_proj.", ".w3."),
        ),
    ),
    "qwen3_moe": Family("Qwen3 MoE", "Qwen3-30B-A3B", experts="num_experts", expert_size="moe_intermediate_size"),
}
"""model_type -> family."""
