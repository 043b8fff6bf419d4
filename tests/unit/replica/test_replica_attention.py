"""The contract of PagedAttention: whatever the blocks, each token sees the tokens of its sequence up to its own.

Implementations join by a line in `IMPLEMENTATIONS`. The reference here is written out, in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)

from exahpc.replica.blocks import BLOCK, blocks_of  # noqa: E402
from exahpc.replica.engine.attention import PagedCache, Step, gather_attention  # noqa: E402
from exahpc.replica.engine.native import api  # noqa: E402
from exahpc.replica.engine.native.attention import native_attention  # noqa: E402
from exahpc.replica.plan import Begin, Plan, Row  # noqa: E402
from exahpc.replica.tables import Tables  # noqa: E402

IMPLEMENTATIONS: dict[str, Callable[..., Any]] = {"gather": gather_attention}
if api.available():
    IMPLEMENTATIONS["native"] = native_attention
CONTEXT, CPU = 400, torch.device("cpu")


@pytest.fixture(params=IMPLEMENTATIONS)
def attention(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return IMPLEMENTATIONS[request.param]


class Sequences:
    """Sequences in one cache, their blocks in random order, and all their queries, keys and values in float64."""

    def __init__(self, count: int, heads: int, kv_heads: int, dim: int, seed: int = 0, blocks: int = 200) -> None:
        self.random = np.random.default_rng(seed)
        self.heads, self.kv_heads, self.dim = heads, kv_heads, dim
        self.cache = PagedCache(2, blocks, kv_heads, dim, torch.float32, CPU)
        self.tables = Tables(count, CONTEXT)
        self.free = self.random.permutation(np.arange(1, blocks + 1)).tolist()
        self.k, self.v = (np.zeros((count, CONTEXT, kv_heads, dim)) for _ in range(2))
        self.cached = [0] * count

    def plan(self, news: dict[int, int]) -> Plan:
        """So many new tokens for these slots."""
        blocks = []
        for slot, new in news.items():
            more = blocks_of(self.cached[slot] + new) - self.tables.used[slot]
            blocks.append((slot, [self.free.pop() for _ in range(more)]))
        rows = [Row(slot, self.cached[slot], [0] * new, True) for slot, new in news.items()]
        return Plan(blocks=blocks, rows=sorted(rows, key=lambda row: len(row.ids) > 1))

    def run(self, attention: Callable[..., Any], plan: Plan, layer: int = 1, **options: Any) -> float:
        """Largest difference from the reference."""
        self.tables.apply(plan)
        step = Step(plan, self.tables, CPU)
        q = self.random.normal(size=(step.total, self.heads, self.dim))
        k, v = (self.random.normal(size=(step.total, self.kv_heads, self.dim)) for _ in range(2))
        at = 0
        for row in plan.rows:
            new = len(row.ids)
            for whole, part in ((self.k, k), (self.v, v)):
                whole[row.slot, row.past : row.past + new] = part[at : at + new]
            self.cached[row.slot] = row.past + new
            at += new
        tensors = [torch.tensor(x, dtype=torch.float32) for x in (q, k, v)]
        got = attention(step, self.cache, layer, *tensors, **options)
        assert got.shape == q.shape
        return float(np.abs(got.double().numpy() - self.expected(plan, q, **options)).max())

    def expected(self, plan: Plan, q: Any, scale: float | None = None, window: int | None = None) -> Any:
        scale = self.dim**-0.5 if scale is None else scale
        out, at = np.zeros_like(q), 0
        for row in plan.rows:
            for place in range(row.past, row.past + len(row.ids)):
                first = 0 if window is None else max(0, place + 1 - window)
                for head in range(self.heads):
                    pair = head // (self.heads // self.kv_heads)
                    k, v = (x[row.slot, first : place + 1, pair] for x in (self.k, self.v))
                    scores = scale * (k @ q[at, head])
                    weights = np.exp(scores - scores.max())
                    out[at, head] = weights @ v / weights.sum()
                at += 1
        return out


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(9, 3, 64), (4, 4, 16), (8, 1, 80), (2, 2, 128)])
def test_tokens_see_their_sequence_up_to_themselves(
    attention: Callable[..., Any], heads: int, kv_heads: int, dim: int
) -> None:
    s = Sequences(5, heads, kv_heads, dim)
    steps: Sequence[dict[int, int]] = [
        {0: 1, 1: 3, 2: 100},  # first tokens: one, some, many
        {3: 16, 4: 31, 0: 1},  # a whole block; a decoding sequence among prompts
        {0: 1, 1: 1, 2: 1, 3: 1, 4: 1},  # decoding: very different lengths, block edges
        {0: 40, 1: 1, 2: 50, 3: 1},  # parts of prompts that go on
        {4: 1},
    ]
    for news in steps:
        assert s.run(attention, s.plan(news)) < 1e-5


@pytest.mark.parametrize("window", [1, 5, BLOCK, 37, 1000])
def test_a_window_hides_what_is_further_back(attention: Callable[..., Any], window: int) -> None:
    s = Sequences(3, 4, 2, 32)
    for news in ({0: 60, 1: 3, 2: 20}, {0: 30, 1: 1, 2: 1}, {0: 1, 1: 1, 2: 1}):
        assert s.run(attention, s.plan(news), window=window) < 1e-5


def test_layers_of_one_step_may_differ_in_window_and_scale(attention: Callable[..., Any]) -> None:
    s = Sequences(2, 4, 2, 16)
    s.run(attention, s.plan({0: 40, 1: 7}))
    plan = s.plan({0: 1, 1: 1})
    s.tables.apply(plan)
    step = Step(plan, s.tables, CPU)
    q, k, v = torch.randn(2, 4, 16), torch.randn(2, 2, 16), torch.randn(2, 2, 16)
    both = [attention(step, s.cache, 0, q, k, v, scale=scale, window=w) for scale, w in ((0.1, 9), (1.0, None))]
    again = attention(step, s.cache, 0, q, k, v, scale=0.1, window=9)
    assert not torch.allclose(*both)
    assert torch.equal(both[0], again)


def test_a_scale_is_taken_as_given(attention: Callable[..., Any]) -> None:
    s = Sequences(2, 4, 2, 16)
    assert s.run(attention, s.plan({0: 33, 1: 2}), scale=0.5) < 1e-5
    assert s.run(attention, s.plan({0: 1, 1: 1}), scale=0.5) < 1e-5


def test_sequences_may_share_blocks_and_build_on_rows_of_the_same_step(attention: Callable[..., Any]) -> None:
    s = Sequences(3, 4, 2, 16)
    plan = s.plan({0: 40})
    shared = plan.blocks[0][1][:2]
    more = [(slot, [*shared, s.free.pop()]) for slot in (1, 2)]
    rows = [Row(1, 32, [0], True), *plan.rows, Row(2, 32, [0] * 5, True)]
    joint = Plan(begins=[Begin(1), Begin(2)], blocks=[*plan.blocks, *more], rows=rows)
    s.tables.apply(joint)
    step = Step(joint, s.tables, CPU)
    q, k, v = (torch.randn(46, n, 16) for n in (4, 2, 2))
    got = attention(step, s.cache, 0, q, k, v)
    for row, at, new in ((1, 0, 1), (2, 41, 5)):
        alone = Sequences(3, 4, 2, 16)
        chosen = torch.cat((torch.arange(1, 33), torch.arange(at, at + new)))
        other = alone.plan({row: 32 + new})
        alone.tables.apply(other)
        want = attention(Step(other, alone.tables, CPU), alone.cache, 0, q[chosen], k[chosen], v[chosen])
        assert float((got[at : at + new] - want[32:]).abs().max()) < 1e-5


def test_nothing_but_the_new_cells_is_written(attention: Callable[..., Any]) -> None:
    s = Sequences(3, 4, 2, 16)
    for news in ({0: 20, 1: 5, 2: 33}, {0: 1, 1: 30, 2: 1}):
        before = [c.clone() for c in (s.cache.k, s.cache.v)]
        plan = s.plan(news)
        s.run(attention, plan)
        step = Step(plan, s.tables, CPU)
        for cache, old in zip((s.cache.k, s.cache.v), before, strict=True):
            changed = {tuple(at[:2] + at[3:4]) for at in (cache != old).nonzero().tolist()}
            assert changed == {(1, *divmod(at, BLOCK)) for at in step.writes.tolist()}
            assert not cache[:, 0].any()


def test_what_lies_beyond_a_sequence_does_not_matter(attention: Callable[..., Any]) -> None:
    """Blocks hold numbers of earlier users; only those that are not finite are zeroed before."""
    s = Sequences(3, 4, 2, 16)
    s.cache.k[:, 1:], s.cache.v[:, 1:] = 3e4, -3e4
    for news in ({0: 20, 1: 5, 2: 90}, {0: 1, 1: 30, 2: 1}, {0: 1, 1: 1, 2: 1}):
        assert s.run(attention, s.plan(news)) < 1e-5


def test_wiped_blocks_are_zero() -> None:
    cache = PagedCache(2, 3, 1, 4, torch.bfloat16, CPU)
    cache.k.fill_(float("nan"))
    cache.v.fill_(1.0)
    cache.wipe([1, 3])
    assert not cache.k[:, [1, 3]].any()
    assert not cache.v[:, [1, 3]].any()
    assert cache.v[:, [0, 2]].all()


def test_a_step_says_where_tokens_lie() -> None:
    tables = Tables(3, 100)
    rows = [Row(2, 16, [7], True), Row(0, 0, [1, 2, 3], False, score=True, target=4), Row(1, 30, [5] * 4, True)]
    plan = Plan(begins=[Begin(0), Begin(1), Begin(2)], blocks=[(0, [9]), (1, [4, 2, 7]), (2, [8, 3])], rows=rows)
    tables.apply(plan)
    step = Step(plan, tables, CPU)
    assert step.positions.tolist() == [16, 0, 1, 2, 30, 31, 32, 33]
    assert step.writes.tolist() == [48, 144, 145, 146, 46, 47, 112, 113]
    assert step.tables.tolist() == [[8, 3, 0], [9, 0, 0], [4, 2, 7]]
    assert (step.lengths.tolist(), step.starts.tolist()) == ([17, 3, 34], [0, 1, 4, 8])
    assert (step.total, step.decoding, step.logits.tolist()) == (8, 1, [0, 1, 2, 3, 7])
    dtypes = [x.dtype for x in (step.positions, step.writes, step.tables, step.lengths, step.starts, step.logits)]
    assert dtypes == [torch.int64, torch.int64, torch.int32, torch.int32, torch.int32, torch.int64]
    assert all(x.is_contiguous() for x in (step.positions, step.writes, step.tables, step.lengths, step.starts))


def test_a_slot_that_begins_anew_has_an_empty_table() -> None:
    tables = Tables(1, 64)
    tables.apply(Plan(begins=[Begin(0)], blocks=[(0, [5, 6, 7])]))
    tables.apply(Plan(blocks=[(0, [8])]))
    assert tables.blocks.tolist() == [[5, 6, 7, 8]]
    tables.apply(Plan(begins=[Begin(0)], blocks=[(0, [2])]))
    assert (tables.blocks.tolist(), tables.used) == ([[2, 0, 0, 0]], [1])
