"""Every rank's memory of what earlier plans said: the block table of each slot. Numpy only."""

from __future__ import annotations

import numpy as np

from exahpc.replica.blocks import blocks_of
from exahpc.replica.plan import Plan


class Tables:
    """blocks: [slots, blocks of a context] int32, of which the first `used[slot]` count."""

    def __init__(self, slots: int, context: int) -> None:
        self.blocks = np.zeros((slots, blocks_of(context)), np.int32)
        self.used = [0] * slots

    def apply(self, plan: Plan) -> None:
        """Take in what a plan changes, before its rows run."""
        for begin in plan.begins:
            self.blocks[begin.slot, : self.used[begin.slot]] = 0
            self.used[begin.slot] = 0
        for slot, more in plan.blocks:
            start = self.used[slot]
            self.used[slot] = end = start + len(more)
            self.blocks[slot, start:end] = more
