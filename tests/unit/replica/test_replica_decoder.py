"""The short way through the layers gives what Hugging Face's forward gives."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from transformers import AutoConfig, AutoModel

from exahpc.replica.blocks import BLOCK, blocks_of
from exahpc.replica.engine.attention import PagedCache, Step, gather_attention
from exahpc.replica.engine.decoder import Decoder
from exahpc.replica.engine.layers import Composed, layers_of
from exahpc.replica.engine.native import api
from exahpc.replica.engine.native.attention import native_attention
from exahpc.replica.engine.native.stack import Stack
from exahpc.replica.plan import Plan, Row
from exahpc.replica.tables import Tables

CPU, CONTEXT = torch.device("cpu"), 128
KINDS = {
    "llama": {"head_dim": 16, "attention_bias": True, "mlp_bias": True},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "mistral": {"head_dim": 16, "sliding_window": 9, "hidden_act": "gelu_pytorch_tanh"},
}


def by_torch(body, cache):
    return Composed(layers_of(body), cache, gather_attention, torch.float32)


def by_calls(body, cache):
    return Composed(layers_of(body), cache, native_attention, torch.float32)


def by_stack(body, cache):
    return Stack(layers_of(body), cache)


def by_layer(body, cache):
    """As by_stack, with a call in between."""
    return Stack(layers_of(body), cache, lambda: lambda: None)


def by_rank(body, cache):
    """As one rank of several whose others add nothing."""
    alone = layers_of(body)
    return Stack(
        [x._replace(o=x.o._replace(add_up=_same), down=x.down._replace(add_up=_same)) for x in alone], cache
    )


def _same(_: torch.Tensor) -> None:
    pass


@pytest.fixture(params=[by_torch, by_calls, by_stack, by_layer, by_rank])
def by(request, monkeypatch):
    torch.set_num_threads(1)
    if request.param is by_torch:
        monkeypatch.setattr(api, "available", lambda: False)
    elif not api.available():
        pytest.skip("no C++ compiler here")
    return request.param


def _body(kind: str):
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 3, "vocab_size": 50}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = AutoConfig.for_model(kind, **sizes, **heads, **KINDS[kind], pad_token_id=None)
    body = AutoModel.from_config(config).eval().requires_grad_(False)
    for parameter in body.parameters():
        parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, 0.2)
    return body


class _Run:
    """Sequences that pass through a decoder in parts."""

    def __init__(self, body, by, count: int) -> None:
        self._cache = PagedCache(3, count * blocks_of(CONTEXT), 2, 16, torch.float32, CPU)
        self._decoder = Decoder(body, by(body, self._cache), True)
        self._tables, self._cached, self._next = Tables(count, CONTEXT), [0] * count, 1

    def __call__(self, parts: Sequence[tuple[int, torch.Tensor]]) -> list[torch.Tensor]:
        """(sequence, hidden states [T, H] of its next tokens) -> their hidden states."""
        parts = sorted(parts, key=lambda part: len(part[1]) > 1)
        blocks, rows = [], []
        for slot, hidden in parts:
            past = self._cached[slot]
            more = blocks_of(past + len(hidden)) - blocks_of(past)
            blocks.append((slot, list(range(self._next, self._next + more))))
            self._next += more
            rows.append(Row(slot, past, [0] * len(hidden), True))
            self._cached[slot] = past + len(hidden)
        plan = Plan(blocks=blocks, rows=rows)
        self._tables.apply(plan)
        whole = torch.cat([hidden for _, hidden in parts])
        out = self._decoder(Step(plan, self._tables, CPU), self._cache, whole)
        return list(out.split([len(hidden) for _, hidden in parts]))


@pytest.mark.parametrize("kind", KINDS)
def test_hidden_states_are_those_of_hugging_face(by, kind) -> None:
    body = _body(kind)
    x = [torch.randn(n, 64) for n in (40, 3)]
    wanted = [body(inputs_embeds=one[None]).last_hidden_state[0] for one in x]
    run = _Run(body, by, 2)
    first = run([(0, x[0][:30])])[0]
    single, second = run([(1, x[1]), (0, x[0][30:31])])
    third, last = run([(0, x[0][31:])])[0], second
    found = torch.cat([first, single, third])
    torch.testing.assert_close(found, wanted[0], rtol=2e-4, atol=2e-4)
    torch.testing.assert_close(last, wanted[1], rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_is_the_same_to_the_bit_in_any_batch_and_any_chunk(dtype) -> None:
    if not api.available():
        pytest.skip("no C++ compiler here")
    torch.set_num_threads(1)
    body = _body("qwen3").to(dtype)
    body.rotary_emb.to(torch.float32)
    x = [torch.randn(n, 64) for n in (50, 90, 20)]
    alone = [_Run(body, by_stack, 1)([(0, one)])[0] for one in x]
    run = _Run(body, by_stack, 3)
    run([(0, x[0][:49]), (1, x[1][:15]), (2, x[2][: BLOCK + 1])])
    mixed = run([(0, x[0][49:]), (2, x[2][BLOCK + 1 : BLOCK + 2]), (1, x[1][15:77])])
    assert torch.equal(mixed[0], alone[0][49:])
    assert torch.equal(mixed[1], alone[2][BLOCK + 1 : BLOCK + 2])
    assert torch.equal(mixed[2], alone[1][15:77])
