"""How a batch ended: counts of rows by outcome, and what went wrong most often."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from exahpc.batch.columns import OUTCOMES, Block
from exahpc.batch.reasons import Reasons, reason_of


@dataclass(frozen=True)
class Summary:
    """How a batch ended. failed: with those that were skipped; commonest_error: of the failed rows; path: the
    results file; node_hours: used for it."""

    total: int
    ok: int
    failed: int
    commonest_error: str | None
    path: Path
    skipped: int = 0
    node_hours: float = 0.0

    @property
    def exit_code(self) -> int:
        """0: every row has its answer; 3: some failed; 4: all failed."""
        if not self.failed:
            return 0
        return 3 if self.ok else 4


_PLACE = re.compile(r"^(line|row) \d+: ")


class Tally:
    """Counts rows by outcome and remembers what went wrong most often."""

    def __init__(self) -> None:
        self._counts = np.zeros(len(OUTCOMES), np.int64)
        self._reasons = Reasons()

    def add(self, block: Block) -> None:
        """block: with its responses."""
        self._counts += np.bincount(block.numbers["outcome"], minlength=len(OUTCOMES))
        failed = np.flatnonzero(block.numbers["outcome"])
        if len(failed):
            bad = block.numbers[failed]
            bodies = block.texts["response"].take(failed).pieces()
            for body, status in zip(bodies, bad["status"].tolist(), strict=True):
                self._reasons.add(_PLACE.sub("", reason_of(body, status)))  # alike apart from where

    @property
    def commonest(self) -> str | None:
        """ "7 times: reason", or None without failures."""
        for reason, times in self._reasons.most(1):
            return f"{times} times: {reason}" if times > 1 else reason
        return None

    def summary(self, path: Path) -> Summary:
        ok, failed, skipped = map(int, self._counts)
        return Summary(ok + failed + skipped, ok, failed + skipped, self.commonest, path, skipped)
