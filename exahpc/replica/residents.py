"""Who waits, who runs, and which slots and blocks they hold. Pure; see `batching` for the order of it all."""

from __future__ import annotations

import heapq
from bisect import insort

from exahpc.errors import StateError
from exahpc.replica.blocks import BLOCK, BlockPool, blocks_of
from exahpc.replica.sequence import Sequence


class Residents:
    """waiting, running: both in order of keys; hits: tokens found in the pool instead of being computed;
    preemptions: sequences that had to give way."""

    def __init__(self, slots: int, blocks: int, prefix: bool) -> None:
        self.pool = BlockPool(blocks)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.hits = self.preemptions = 0
        self._slots = list(range(slots))
        self._prefix = prefix

    # --- coming and going -----------------------------------------------------------------------------------

    def enqueue(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=_key)

    def start(self) -> None:
        """Give slots to waiting sequences in order, as long as there is room for what they must compute."""
        while self.waiting:
            first = self.waiting[0]
            if self._slots and self._fits(first):
                del self.waiting[0]
                first.slot = heapq.heappop(self._slots)
                insort(self.running, first, key=_key)
            elif first.message.batch or not self._clear_rows(first):
                return

    def leave(self, sequence: Sequence) -> None:
        """A sequence ends, wherever it is."""
        if sequence.slot < 0:
            self.waiting.remove(sequence)
        else:
            self._release(sequence)

    def _preempt(self, sequence: Sequence) -> None:
        self._release(sequence)
        self.enqueue(sequence)
        self.preemptions += 1

    def _release(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        heapq.heappush(self._slots, sequence.slot)
        unproven = sequence.blocks[sequence.sound // BLOCK :] if sequence.cached > sequence.sound else ()
        self.pool.give(reversed(sequence.blocks), unproven)  # what others build on is forgotten last
        sequence.park()

    # --- blocks of those that run ---------------------------------------------------------------------------

    def adopt(self, sequence: Sequence) -> None:
        """Share the blocks that hold its next tokens already. At least one token is left to compute."""
        if sequence.cached % BLOCK:
            return
        for index in range(len(sequence.blocks), self._shareable(sequence)):
            block = self.pool.find(sequence.block_key(index))
            if block is None:
                return
            self.pool.share(block)
            sequence.blocks.append(block)
            sequence.untold += 1
            sequence.cached += BLOCK
            self.hits += BLOCK
            if not sequence.generated:
                sequence.found += BLOCK

    def has(self, sequence: Sequence, count: int) -> bool:
        """Whether `count` further tokens find room without anybody giving way."""
        return blocks_of(sequence.cached + count) - len(sequence.blocks) <= self.pool.free

    def grow(self, sequence: Sequence, count: int) -> bool:
        """Take the blocks for `count` further tokens; the highest keys give way.

        False: it gave way itself, being the highest (its slot is gone), or has to wait for tokens in flight.
        """
        while (need := blocks_of(sequence.cached + count) - len(sequence.blocks)) > self.pool.free:
            later = [s for s in self.running if s.key > sequence.key]
            victim = next((s for s in reversed(later) if not s.awaited), None)
            if victim is not None:
                self._preempt(victim)
            elif later:
                return False
            elif len(self.running) == 1:
                raise StateError(f"{need} blocks are needed by the only sequence, {self.pool.free} are free")
            else:
                self._preempt(sequence)
                return False
        sequence.blocks += self.pool.take(need)
        sequence.untold += need
        return True

    def publish(self, sequence: Sequence, before: int) -> None:
        """Let others find the blocks that filled up since it had `before` cached tokens."""
        if self._prefix:
            for index in range(before // BLOCK, sequence.cached // BLOCK):
                key, parent = sequence.block_key(index), sequence.block_key(index - 1)
                self.pool.publish(sequence.blocks[index], key, parent)

    # --- whether a sequence fits ----------------------------------------------------------------------------

    def _shareable(self, sequence: Sequence) -> int:
        """Blocks of its beginning that need not be its own."""
        return 0 if sequence.scores or not self._prefix else (len(sequence.ids) - 1) // BLOCK

    def _need(self, sequence: Sequence) -> int:
        """Free blocks that a waiting sequence takes up to its next token; those that others use cost nothing."""
        need = blocks_of(len(sequence.ids) + 1)
        for index in range(self._shareable(sequence)):
            block = self.pool.find(sequence.block_key(index))
            if block is None:
                break
            need -= self.pool.users(block) > 0
        return need

    def _fits(self, sequence: Sequence) -> bool:
        return not self.running or self._need(sequence) + _promised(self.running) <= self.pool.free

    def _clear_rows(self, sequence: Sequence) -> bool:
        """Let one batch row give way to an online sequence, if batch rows can make enough room for it."""
        rows = [s for s in self.running if s.message.batch and not s.awaited and s.key > sequence.key]
        others = [s for s in self.running if s not in rows]
        spare = self.pool.free + sum(len(s.blocks) for s in rows)
        if not rows or (others and self._need(sequence) + _promised(others) > spare):
            return False
        self._preempt(rows[-1])
        return True


def _promised(running: list[Sequence]) -> int:
    """Free blocks that these will take soon: for the rest of their prompts, and one more each."""
    return sum(blocks_of(len(s.ids)) - len(s.blocks) + 1 for s in running)


def _key(sequence: Sequence) -> tuple[int, int]:
    return sequence.key
