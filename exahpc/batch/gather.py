"""Everything that is committed of a batch, in the order of its input: a merge of its segments."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import numpy as np

from exahpc.batch.client import process_lives
from exahpc.batch.columns import Block, Replicas
from exahpc.batch.plan import BatchPlan, Parts
from exahpc.batch.segments import Roller, Segment, numbers, segment_path
from exahpc.errors import BatchError

BLOCK_ROWS = 32_768
BLOCK_BYTES = 64 * 2**20


class Gathered:
    """Opened for reading: while it is, further rows may be committed, which it does not know.

    What no client has rolled yet is rolled into a temporary folder beside the segments. Memory: 5 bytes a row, and
    one block.
    """

    def __init__(self, parts: Parts, plan: BatchPlan, beat: Callable[[], None] = lambda: None) -> None:
        """beat: called now and then. Raises BatchError for what is damaged, foreign or mixed up."""
        self.batch, self.rows = plan.batch, plan.rows
        self.replicas = Replicas()
        self._late = _temporary(parts.segments)
        try:
            Roller(parts, plan, beat=beat, into=self._late).roll(everything=True)
            self._segments = [
                Segment(segment_path(folder, number), plan.batch, number)
                for folder in (parts.segments, self._late)
                for number in numbers(folder)
            ]
            self._count_rows(beat)
        except BaseException:
            self.close()
            raise
        self._tables = [
            np.array([self.replicas.number(replica) for replica in segment.replicas], "<u4")
            for segment in self._segments
        ]

    def _count_rows(self, beat: Callable[[], None]) -> None:
        seen = np.zeros(self.rows, bool)
        for segment in self._segments:
            beat()
            segment.verify()
            if len(segment.rows) and segment.rows[-1] >= self.rows:
                raise BatchError(f"{segment.path} holds row {segment.rows[-1]}, this batch has {self.rows} rows")
            if seen[segment.rows].any():
                again = segment.rows[seen[segment.rows]][0]
                raise BatchError(
                    f"{segment.path} holds row {again}, which an earlier segment holds too: segments were mixed "
                    f"up; remove all of them, they are made again from the journals"
                )
            seen[segment.rows] = True
        self.done = int(np.count_nonzero(seen))

    @property
    def missing(self) -> int:
        """Rows that are not committed."""
        return self.rows - self.done

    def blocks(self) -> Iterator[Block]:
        """Committed rows in input order; `replica` is a place in `replicas`."""
        at = [0] * len(self._segments)
        low, step = 0, BLOCK_ROWS
        while self._segments and low < self.rows:
            high = min(self.rows, low + step)
            upto = [
                i + int(np.searchsorted(segment.rows[i : i + step], high))
                for i, segment in zip(at, self._segments, strict=True)
            ]
            block = self._block(at, upto, BLOCK_BYTES if step > 1 else 1 << 62)
            if block is None:
                step //= 2
                continue
            if len(block):
                yield block
            at, low, step = upto, high, min(BLOCK_ROWS, 2 * step)

    def _block(self, low: list[int], high: list[int], most_bytes: int) -> Block | None:
        found: list[Block] = []
        for segment, table, i, j in zip(self._segments, self._tables, low, high, strict=True):
            if i == j and found:
                continue
            block = segment.read(i, j, most_bytes)
            if block is None:
                return None
            most_bytes -= sum(text.data.nbytes for text in block.texts.values())
            mapped = block.numbers.copy()
            mapped["replica"] = table[mapped["replica"]]
            found.append(Block(mapped, block.texts))
        whole = Block.joined(found)
        return whole if len(found) == 1 else whole.take(np.argsort(whole.numbers["row"], kind="stable"))

    def close(self) -> None:
        shutil.rmtree(self._late, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _temporary(beside: Path) -> Path:
    """A new folder: there, since /tmp may be small; or in /tmp for who may not write there. What killed processes
    of this host left is removed."""
    ours = f".late.{socket.gethostname()}."
    for left in beside.glob(f"{ours}*"):
        pid = left.name.removeprefix(ours).partition(".")[0]
        if pid.isdigit() and not process_lives(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
    try:
        return Path(tempfile.mkdtemp(prefix=f"{ours}{os.getpid()}.", dir=beside))
    except OSError:
        return Path(tempfile.mkdtemp(prefix="exahpc-batch-"))
