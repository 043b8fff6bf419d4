"""One pipeline stage on one rank: layers [first, last) of a Hugging Face decoder, tensor-parallel through
DeepSpeed-Inference (AutoTP), weights memory-mapped from the checkpoint, own slot cache.

DeepSpeed has no pipeline for inference, so a stage is a decoder with only its own layers. The output layer stays
outside of DeepSpeed, split by vocabulary rows: AutoTP's own would copy the whole matrix and reduce all logits.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Any

import deepspeed
import torch
from torch import nn
from transformers import AutoConfig, AutoModel

from exahpc.deployment.grid import layers_of_stage
from exahpc.replica.engine.attention import SlotCache, Step
from exahpc.replica.engine.checkpoint import Checkpoint
from exahpc.replica.engine.decoder import Decoder
from exahpc.replica.engine.group import settings
from exahpc.replica.engine.linear import product, replace_linears, work_dtype

log = logging.getLogger(__name__)


class Stage:
    """`forward` runs the layers, `logits` the output layer. Both need `group.init` first.

    vocabulary: edges of the ranks' slices of the output layer; hidden: width of the hidden states; dtype: number
    format of hidden states and KV cache, see `linear.work_dtype`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        stage: int,
        stages: int,
        rank: int,
        ranks: int,
        slots: int,
        context: int,
        dtype: torch.dtype,
        pack: bool = False,
    ) -> None:
        """stage of stages; rank of ranks in the tensor-parallel group. pack: see `linear`."""
        config = AutoConfig.from_pretrained(folder)
        layers = int(config.num_hidden_layers)
        first = sum(layers_of_stage(layers, stages, s) for s in range(stage))
        last = first + layers_of_stage(layers, stages, stage)
        self.is_first, self.is_last = stage == 0, stage == stages - 1
        self.vocabulary_size, self.hidden = int(config.vocab_size), int(config.hidden_size)
        checkpoint = Checkpoint(folder)
        body = _body(config, checkpoint, first, last, self.is_first, self.is_last, dtype)
        on_cpu = deepspeed.accelerator.get_accelerator().device_name() == "cpu"
        with open(os.devnull, "w") as null, contextlib.redirect_stdout(null):  # AutoTP prints its policy
            engine = deepspeed.init_inference(
                body,
                dtype=dtype,
                tensor_parallel=settings(),
                replace_with_kernel_inject=False,
                keep_module_on_host=on_cpu,  # on CPUs the shards stay views of the mapped file
            )
        body = engine.module
        self.device = next(body.parameters()).device
        attention = body.layers[0].self_attn
        heads = attention.k_proj.weight.shape[0] // attention.head_dim
        self.dtype = work_dtype(dtype) if on_cpu else dtype
        self.cache = SlotCache((last - first, slots, heads, context, attention.head_dim), self.dtype, self.device)
        pack = pack and on_cpu and dtype != torch.float32
        if pack or self.dtype != dtype:
            replace_linears(body, self.dtype, pack)
        self._decoder = Decoder(body, self.dtype, self.is_last)
        self._embed = body.embed_tokens
        self.vocabulary = [self.vocabulary_size * r // ranks for r in range(ranks + 1)]
        if self.is_last:
            tied = "lm_head.weight" not in checkpoint
            weight = checkpoint["model.embed_tokens.weight" if tied else "lm_head.weight"]
            mine = weight[self.vocabulary[rank] : self.vocabulary[rank + 1]].to(self.device, dtype)
            self._head = product(mine, work=self.dtype, pack=pack)

    @torch.inference_mode()
    def forward(self, step: Step, x: torch.Tensor) -> torch.Tensor:
        """Token ids [T] (first stage) or hidden states [T, hidden] (later ones) -> hidden states [T, hidden]."""
        if self.is_first:
            x = self._embed(x).to(self.dtype)
        return self._decoder(step, self.cache, x)

    @torch.inference_mode()
    def logits(self, step: Step, hidden: torch.Tensor) -> torch.Tensor:
        """Next-token logits of the rows to sample, float32 [rows, my vocabulary slice] (last stage only)."""
        return self._head(hidden[step.sampled]).float()


def _body(
    config: Any, checkpoint: Checkpoint, first: int, last: int, is_first: bool, is_last: bool, dtype: torch.dtype
) -> Any:
    """The decoder with layers [first, last), its parameters views of the checkpoint (copies if dtypes differ)."""
    config.num_hidden_layers = last - first
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[first:last]
    with torch.device("meta"):
        body: Any = AutoModel.from_config(config, dtype=dtype).eval()  # type: ignore[no-untyped-call]
    if not is_first:
        body.embed_tokens = None
    if not is_last:
        body.norm = nn.Identity()
    body.rotary_emb = type(body.rotary_emb)(config=config)  # its buffers must hold numbers
    weights = {}
    for name, _ in body.named_parameters():
        source = name
        if name.startswith("layers."):
            _, layer, rest = name.split(".", 2)
            source = f"layers.{int(layer) + first}.{rest}"
        weights[name] = checkpoint["model." + source].to(dtype)
    body.load_state_dict(weights, strict=False, assign=True)
    return body
