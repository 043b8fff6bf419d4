"""Laws of the block pool: blocks are conserved, keys tell prompts apart, the least recently used is forgotten."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from exahpc.errors import StateError
from exahpc.replica.blocks import BLOCK, ROOT, BlockPool, blocks_of, chain

IDS = list(range(BLOCK))


class Pool(RuleBasedStateMachine):
    """Any use of the pool, against a plain list of who holds what."""

    @initialize(blocks=st.integers(1, 8))
    def begin(self, blocks: int) -> None:
        self.pool = BlockPool(blocks)
        self.held: list[int] = []
        self.keys: dict[int, bytes] = {}  # what is remembered of each block, as far as this test knows
        self.dirty: set[int] = set()
        self.number = 0

    @rule(count=st.integers(0, 4))
    def take(self, count: int) -> None:
        if count > self.pool.free:
            with pytest.raises(StateError):
                self.pool.take(count)
            return
        taken = self.pool.take(count)
        assert len(set(taken)) == count
        assert not set(taken) & set(self.held), "a block in use was handed out"
        assert 0 not in taken
        unclean = self.pool.unclean()
        assert set(unclean) == self.dirty & set(taken), "what must be zeroed is told once, when it is handed out"
        self.dirty -= set(unclean)
        for block in taken:
            key = self.keys.pop(block, None)
            assert key is None or self.pool.find(key) != block
        self.held += taken

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.held))
        if block not in self.keys:
            before = data.draw(st.sampled_from([ROOT, *self.keys.values()]))
            self.number += 1
            key = chain(before, [self.number] * BLOCK)
            self.pool.publish(block, key, before)
            assert self.pool.find(key) == block
            self.keys[block] = key

    @precondition(lambda self: self.keys)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        block = self.pool.find(data.draw(st.sampled_from(sorted(self.keys.values()))))
        if block is not None:
            self.pool.share(block)
            self.held.append(block)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), dirty=st.booleans())
    def give(self, data: st.DataObject, dirty: bool) -> None:
        block = data.draw(st.sampled_from(self.held))
        self.held.remove(block)
        self.pool.give([block], [block] if dirty else [])
        self.dirty |= {block} if dirty else set()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def condemn(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.held))
        self.pool.condemn([block])
        key = self.keys.get(block)
        assert key is None or self.pool.find(key) is None
        gone = {b for b, k in self.keys.items() if self.pool.find(k) is None}
        self.dirty |= gone
        self.keys = {b: k for b, k in self.keys.items() if b not in gone}

    @invariant()
    def blocks_are_conserved(self) -> None:
        assert self.pool.free + len(set(self.held)) == self.pool.blocks
        assert all(self.pool.users(b) == self.held.count(b) for b in range(1, self.pool.blocks + 1))
        for block, key in self.keys.items():
            assert self.pool.find(key) == block, "what is not handed out anew is remembered"


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def filled(pool: BlockPool, count: int) -> list[tuple[int, bytes]]:
    """A prompt of so many full blocks, unlike any other, given back."""
    key, found = ROOT, []
    for block in pool.take(count):
        before, key = key, chain(key, [block] * BLOCK)
        pool.publish(block, key, before)
        found.append((block, key))
    pool.give(reversed([block for block, _ in found]))
    return found


def test_the_least_recently_used_is_forgotten_first_and_beginnings_last() -> None:
    pool = BlockPool(6)
    (old, old_key), (_, tail_key) = filled(pool, 2)
    (_, new_key), _ = filled(pool, 2)
    pool.share(old)  # used again
    pool.give([old])
    pool.take(3)  # two were never used
    assert pool.find(tail_key) is None
    pool.take(2)
    assert pool.find(new_key) is None
    assert pool.find(old_key) == old


def test_two_blocks_with_the_same_tokens_are_known_once() -> None:
    pool = BlockPool(2)
    one, two = pool.take(2)
    key = chain(ROOT, IDS)
    pool.publish(one, key, ROOT)
    pool.publish(two, key, ROOT)
    assert pool.find(key) == one
    pool.give([two])
    assert pool.find(key) == one
    assert pool.take(1) == [two]


def test_what_was_built_on_a_condemned_block_is_not_found_either() -> None:
    pool = BlockPool(3)
    (a, key_a), (b, key_b) = filled(pool, 2)
    pool.share(a)
    pool.condemn([a])
    assert pool.find(key_a) is pool.find(key_b) is None
    pool.give([a])
    assert set(pool.take(3)) == {1, 2, 3}
    assert sorted(pool.unclean()) == sorted([a, b])


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=BLOCK, max_size=BLOCK), min_size=2, max_size=2, unique_by=str)
)
def test_keys_depend_on_the_tokens_and_on_all_before(two: list[list[int]]) -> None:
    a, b = two
    assert chain(ROOT, a) != chain(ROOT, b)
    assert chain(chain(ROOT, a), a) != chain(chain(ROOT, b), a)
    assert chain(ROOT, a) == chain(ROOT, list(a))


def test_blocks_round_up() -> None:
    assert [blocks_of(n) for n in (0, 1, BLOCK, BLOCK + 1)] == [0, 1, 1, 2]


def test_a_defect_of_the_caller_is_named() -> None:
    pool = BlockPool(1)
    with pytest.raises(StateError, match="no user"):
        pool.give([1])
    with pytest.raises(StateError, match="not remembered"):
        pool.share(1)
