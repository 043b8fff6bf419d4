"""Decoding by graphs gives what the plain path gives. The accelerator pretends: its graph runs the step again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from exahpc.replica.blocks import BLOCK
from exahpc.replica.engine.attention import PagedCache, Step, gather_attention, prepare_still
from exahpc.replica.engine.graphs import Graphs, recorded
from exahpc.replica.plan import Begin, Plan, Row
from exahpc.replica.tables import Tables

HEADS, KV_HEADS, DIM, SLOTS, CONTEXT = 4, 2, 8, 8, 10 * BLOCK
DEVICE = torch.device("cpu")


class Accelerator:
    """Records which step was run on which tensors while it captures, and on replay runs it on them again."""

    class Graph:
        def __init__(self) -> None:
            self.step: Any = None
            self.x = self.out = torch.empty(0)

    def __init__(self) -> None:
        self.capturing: Accelerator.Graph | None = None
        self.replays = 0

    def create_graph(self) -> Graph:
        return Accelerator.Graph()

    @contextlib.contextmanager
    def capture_to_graph(self, graph: Graph, pool: Any = None) -> Iterator[None]:
        self.capturing = graph
        yield
        self.capturing = None

    def synchronize(self) -> None:
        pass

    def replay_graph(self, graph: Graph) -> None:
        self.replays += 1
        prepare_still(graph.step, KV_HEADS)
        graph.out.copy_(self.layer(graph.step, graph.x))

    def run(self, step: Step, x: torch.Tensor) -> torch.Tensor:
        out = self.layer(step, x)
        if self.capturing is not None:
            self.capturing.step, self.capturing.x, self.capturing.out = step, x, out
        return out

    def layer(self, step: Step, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class Model:
    """One layer of attention over a cache of its own, filled by prompts of the given lengths."""

    def __init__(self, lengths: list[int]) -> None:
        random = torch.Generator().manual_seed(0)
        self.tables = Tables(SLOTS, CONTEXT)
        self.cache = PagedCache(1, SLOTS * CONTEXT // BLOCK, KV_HEADS, DIM, torch.float32, DEVICE)
        self.weights = [torch.randn(DIM, n * DIM, generator=random) for n in (HEADS, KV_HEADS, KV_HEADS)]
        self.lengths = list(lengths)
        width = CONTEXT // BLOCK
        blocks = [(slot, list(range(1 + slot * width, 1 + (slot + 1) * width))) for slot in range(len(lengths))]
        plan = Plan(begins=[Begin(slot) for slot in range(len(lengths))], blocks=blocks)
        self.tables.apply(plan)
        rows = [Row(slot, 0, [0] * n, False) for slot, n in enumerate(lengths)]
        step = Step(Plan(rows=sorted(rows, key=lambda r: len(r.ids) > 1)), self.tables, DEVICE)
        self.layer(step, torch.randn(step.total, DIM, generator=random))

    def decoding(self, slots: list[int]) -> Step:
        rows = [Row(slot, self.lengths[slot], [0], True) for slot in slots]
        for slot in slots:
            self.lengths[slot] += 1
        return Step(Plan(rows=rows), self.tables, DEVICE)

    def layer(self, step: Step, x: torch.Tensor) -> torch.Tensor:
        q, k, v = ((x @ w).view(len(x), -1, DIM) for w in self.weights)
        return gather_attention(step, self.cache, 0, q, k, v).reshape(len(x), -1)


LENGTHS = [1, 3, 15, 16, 17, 40, 100, 5]


def test_padded_steps_give_what_plain_ones_give_and_leave_the_same_cache() -> None:
    plain, graphed, accelerator = Model(LENGTHS), Model(LENGTHS), Accelerator()
    accelerator.layer = graphed.layer  # type: ignore[method-assign]
    graphs = Graphs(accelerator, accelerator.run, KV_HEADS)
    random = torch.Generator().manual_seed(1)
    for slots in ([0], [0, 1, 2], [6], [1, 2, 3, 4, 5, 6, 7], [2, 5], [0, 1, 2, 3, 4, 5, 6, 7], [3, 2, 1], [0]):
        x = torch.randn(len(slots), DIM, generator=random)
        wanted = plain.layer(plain.decoding(slots), x)
        got = graphs(graphed.decoding(slots), x)
        assert got is not None
        assert torch.allclose(got, wanted, atol=1e-6)
    assert accelerator.replays == 8
    assert torch.allclose(plain.cache.k, graphed.cache.k, atol=1e-6)
    assert not graphed.cache.k[:, 0].any(), "block 0 belongs to nobody"


def test_there_are_few_graphs_for_many_sizes() -> None:
    model, accelerator = Model(LENGTHS), Accelerator()
    accelerator.layer = model.layer  # type: ignore[method-assign]
    made = []
    accelerator.create_graph = lambda: made.append(1) or Accelerator.Graph()  # type: ignore[method-assign,func-returns-value]
    graphs = Graphs(accelerator, accelerator.run, KV_HEADS)
    for count in range(1, SLOTS + 1):
        for _ in range(2):
            assert graphs(model.decoding(list(range(count))), torch.ones(count, DIM)) is not None
    assert len(made) <= 8


def test_a_result_outlives_the_next_run() -> None:
    model, accelerator = Model(LENGTHS), Accelerator()
    accelerator.layer = model.layer  # type: ignore[method-assign]
    graphs = Graphs(accelerator, accelerator.run, KV_HEADS)
    first = graphs(model.decoding([0, 1]), torch.ones(2, DIM))
    assert first is not None
    kept = first.clone()
    graphs(model.decoding([0, 1]), -torch.ones(2, DIM))
    assert torch.equal(first, kept)


@pytest.mark.parametrize("news", [[2], [1, 5]])
def test_a_step_with_prompts_is_left_to_the_plain_path(news: list[int]) -> None:
    model, accelerator = Model(LENGTHS), Accelerator()
    rows = [Row(slot, LENGTHS[slot], [0] * new, True) for slot, new in enumerate(news)]
    step = Step(Plan(rows=rows), model.tables, DEVICE)
    graphs = Graphs(accelerator, accelerator.run, KV_HEADS)
    assert graphs(step, torch.ones(step.total, DIM)) is None
    assert accelerator.replays == 0


def test_without_an_accelerator_or_with_tensor_parallelism_there_are_no_graphs() -> None:
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

    assert not recorded(CPU_Accelerator(), 1)
    assert not recorded(Accelerator(), 2)
    assert recorded(Accelerator(), 1)
