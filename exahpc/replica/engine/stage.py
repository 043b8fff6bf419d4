"""One pipeline stage on one rank: layers [first, last) of a Hugging Face decoder, tensor-parallel through
DeepSpeed-Inference (AutoTP), weights memory-mapped from the checkpoint, own paged KV cache.

Its parts: `body` (modules and weights), `decoder` or `generic` (run them), `output` (logits).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import deepspeed
import torch
from transformers import AutoConfig

from exahpc.deployment.grid import kv_heads_of_rank, layers_of_stage
from exahpc.deployment.shape import ModelShape, family_of
from exahpc.replica.blocks import BLOCK
from exahpc.replica.engine import body as bodies
from exahpc.replica.engine.attention import PagedCache, Step, gather_attention
from exahpc.replica.engine.checkpoint import Checkpoint
from exahpc.replica.engine.decoder import Decoder
from exahpc.replica.engine.generic import Generic
from exahpc.replica.engine.graphs import Graphs, recorded
from exahpc.replica.engine.layers import Composed, Layers, layers_of
from exahpc.replica.engine.linear import product, replace_linears, work_dtype
from exahpc.replica.engine.native.api import Weight
from exahpc.replica.engine.native.attention import cache_dtype, in_pairs, native_attention, usable
from exahpc.replica.engine.native.stack import Stack
from exahpc.replica.engine.output import OutputLayer, matrix
from exahpc.replica.plan import Plan, Row
from exahpc.replica.tables import Tables

log = logging.getLogger(__name__)
SLOWNESS = 3
"""An operation of attention over a long prompt takes so much longer than one of a matrix product on processors."""


class Stage:
    """`forward` runs the layers, `logits` the output layer. Both need `group.init` first.

    vocabulary: edges of the ranks' slices of the output layer; hidden: width of the hidden states; dtype: number
    format of hidden states, see `linear.work_dtype`; between: called before the attention of each
    layer; graphs: of decoding steps, None where the accelerator has none; slowness: an operation of attention
    takes so many times as long as one of a product.
    """

    def __init__(
        self,
        folder: Path,
        *,
        stage: int,
        stages: int,
        rank: int,
        ranks: int,
        blocks: int,
        dtype: torch.dtype,
    ) -> None:
        """stage of stages; rank of ranks in the tensor-parallel group. blocks: of the KV cache."""
        raw = json.loads((folder / "config.json").read_text())
        config, family, shape = AutoConfig.from_pretrained(folder), family_of(raw), ModelShape.of(raw)
        first, last = layers_of_stage(shape, stages, stage)
        self.is_first, self.is_last = stage == 0, stage == stages - 1
        self.vocabulary_size, self.hidden = shape.vocabulary, shape.hidden
        checkpoint = Checkpoint(folder)
        accelerator = deepspeed.accelerator.get_accelerator()
        on_cpu = accelerator.device_name() == "cpu"
        body = bodies.build(config, family, checkpoint, (first, last), dtype)
        int8 = checkpoint.int8
        body = bodies.split(body, dtype, keep_on_host=on_cpu or int8)  # on processors the parts stay mapped
        if int8:
            checkpoint.give_scales(body, dtype)
            body.to(deepspeed.accelerator.get_accelerator().current_device_name())
        self.device = next(body.parameters()).device
        edges = [0, *accumulate(kv_heads_of_rank(shape, ranks, other) for other in range(ranks))]
        heads = edges[rank], edges[rank + 1]
        self.dtype = work_dtype(dtype) if on_cpu else dtype
        own = usable(shape.head_size, self.device)
        self._attention = native_attention if own else gather_attention
        kv = cache_dtype(dtype) if own else self.dtype
        self.cache = PagedCache(last - first, blocks, heads[1] - heads[0], shape.head_size, kv, self.device)
        self.slowness = SLOWNESS if on_cpu and not (own and in_pairs(kv)) else 1
        self.between: Callable[[], None] | None = None
        by_graph = family.fast and recorded(accelerator, ranks)
        self.graphs = Graphs(accelerator, self._layers, heads[1] - heads[0]) if by_graph else None
        self._decoder: Decoder | Generic
        if family.fast:
            found = layers_of(body)
            layers: Layers
            if own:
                layers = Stack(found, self.cache, lambda: self.between)
            else:
                layers = Composed(found, self.cache, self._attend, self.dtype)
            self._decoder = Decoder(body, layers, self.is_last)
        else:
            if on_cpu or int8:
                replace_linears(body, self.dtype)
            self._decoder = Generic(body, family, heads, self.dtype, self._attend)
        self._embed = bodies.part(body, family.embedding)
        self.vocabulary = [self.vocabulary_size * r // ranks for r in range(ranks + 1)]
        if self.is_last:
            mine = slice(self.vocabulary[rank], self.vocabulary[rank + 1])
            weight, bias = matrix(checkpoint, family, config, self._embed.weight if self.is_first else None)
            weight = weight[mine].to(self.device, dtype)
            bias = None if bias is None else bias[mine].to(self.device, dtype)
            self._head = OutputLayer(product([Weight(weight, bias)], work=self.dtype), config)
        self._warm()

    def _warm(self) -> None:
        """Run one token that nobody asked for: what is made at first use is made now, and weights are read from
        the file system before somebody waits for them. Collective over the tensor-parallel group."""
        tables, plan = Tables(1, BLOCK), Plan(blocks=[(0, [0])], rows=[Row(0, 0, [0], True)])
        tables.apply(plan)
        step = Step(plan, tables, self.device)
        token = torch.zeros(1, dtype=torch.int64, device=self.device)
        hidden = torch.zeros(1, self.hidden, dtype=self.dtype, device=self.device)
        hidden = self.forward(step, token if self.is_first else hidden)
        if self.is_last:
            self.logits(step, hidden)
        self.cache.wipe([0])  # nobody's block stays zero

    @torch.inference_mode()
    def forward(self, step: Step, x: torch.Tensor) -> torch.Tensor:
        """Token ids [T] (first stage) or hidden states [T, hidden] (later ones) -> hidden states [T, hidden]."""
        found = self.graphs(step, x) if self.graphs is not None else None
        return self._layers(step, x) if found is None else found

    def _layers(self, step: Step, x: torch.Tensor) -> torch.Tensor:
        if self.is_first:
            x = self._embed(x).to(self.dtype)
        return self._decoder(step, self.cache, x)

    def _attend(self, *arguments: Any, **more: Any) -> torch.Tensor:
        if self.between is not None:
            self.between()
        return self._attention(*arguments, **more)

    @torch.inference_mode()
    def logits(self, step: Step, hidden: torch.Tensor) -> torch.Tensor:
        """Logits after the tokens `step.logits`, float32 [lines, my vocabulary slice] (last stage only)."""
        return self._head(hidden[step.logits])
