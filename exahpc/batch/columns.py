"""Rows as arrays: one structured array of numbers, and texts as data + offsets.

HDF5's variable-length strings cannot hold NUL, are not compressed and are slow; data + offsets are plain arrays.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from exahpc.batch.journal import Record, Run
from exahpc.batch.plan import SOURCE

ROW = np.dtype(
    [
        ("row", "<u8"),
        ("line", "<u4"),
        ("status", "<u2"),
        ("outcome", "u1"),
        ("named", "u1"),
        ("prompt_tokens", "<u4"),
        ("completion_tokens", "<u4"),
        ("cached_tokens", "<u4"),
        ("replica", "<u4"),
        ("queued", "<f8"),
        ("started", "<f8"),
        ("first_token", "<f8"),
        ("ended", "<f8"),
    ]
)
"""named: the line gave a custom_id; replica: place in a table, 0 for none; times: Unix seconds, or NaN."""
OUTCOMES = {"ok": 0, "failed": 1, "skipped": 2}
"""skipped: not run, since it was bad in the input."""
RAGGED = {"custom_id": "u1", "response": "u1", "token_ids": "<u4"}

_NEVER = Run(0, 0, "", "", math.nan, math.nan, math.nan, math.nan, 0, b"")


class Replica(NamedTuple):
    """What ran a row. agent: "<pool>-<task>", empty for rows that no agent saw."""

    agent: str
    slot: int
    incarnation: int
    node: str
    version: str


class Replicas:
    """A table of replicas; number 0 is none."""

    def __init__(self) -> None:
        self.table = [Replica("", 0, 0, "", "")]
        self._numbers = {self.table[0]: 0}

    def number(self, replica: Replica) -> int:
        found = self._numbers.get(replica)
        if found is None:
            found = self._numbers[replica] = len(self.table)
            self.table.append(replica)
        return found


class Ragged(NamedTuple):
    """Arrays of different lengths, one after the other; number i is data[offsets[i]:offsets[i + 1]]."""

    data: npt.NDArray[Any]
    offsets: npt.NDArray[np.int64]

    @staticmethod
    def of(pieces: Sequence[bytes], kind: str = "u1") -> Ragged:
        size = np.dtype(kind).itemsize
        return Ragged(np.frombuffer(b"".join(pieces), kind), ends(map(len, pieces), len(pieces)) // size)

    def pieces(self) -> list[bytes]:
        data, cuts = self.data.tobytes(), (self.offsets * self.data.itemsize).tolist()
        return [data[a:b] for a, b in itertools.pairwise(cuts)]

    def take(self, order: npt.NDArray[np.int64]) -> Ragged:
        data, size = self.data.tobytes(), self.data.itemsize
        first, last = self.offsets[:-1][order], self.offsets[1:][order]
        cuts = zip((first * size).tolist(), (last * size).tolist(), strict=True)
        return Ragged(
            np.frombuffer(b"".join([data[a:b] for a, b in cuts]), self.data.dtype), ends(last - first, len(order))
        )

    @staticmethod
    def joined(parts: Sequence[Ragged]) -> Ragged:
        lengths = np.concatenate([np.diff(part.offsets) for part in parts])
        return Ragged(np.concatenate([part.data for part in parts]), ends(lengths, len(lengths)))


def ends(lengths: Iterable[int] | npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """Offsets of pieces that are this long: 0, then where each ends."""
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(np.fromiter(lengths, np.int64, count), out=offsets[1:])
    return offsets


@dataclass(frozen=True)
class Block:
    """Some rows. numbers: shape (n,), dtype ROW; texts: of RAGGED, those that were asked for."""

    numbers: npt.NDArray[np.void]
    texts: dict[str, Ragged]

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, order: npt.NDArray[np.int64]) -> Block:
        """The rows at these places, in this order."""
        return Block(self.numbers[order], {name: text.take(order) for name, text in self.texts.items()})

    @staticmethod
    def joined(blocks: Sequence[Block]) -> Block:
        """One after the other; at least one is needed."""
        if len(blocks) == 1:
            return blocks[0]
        texts = {name: Ragged.joined([block.texts[name] for block in blocks]) for name in blocks[0].texts}
        return Block(np.concatenate([block.numbers for block in blocks]), texts)


def packed(records: Sequence[Record], rows: npt.NDArray[np.int64], replicas: Replicas) -> Block:
    """Records as columns, in the same order. rows: of the input, for each record (it knows only its position)."""
    runs = [record.run or _NEVER for record in records]
    numbers = np.zeros(len(records), ROW)
    numbers["row"] = rows
    for name in ("line", "status", "prompt_tokens", "completion_tokens"):
        numbers[name] = [getattr(record, name) for record in records]
    for name in ("cached_tokens", "queued", "started", "first_token", "ended"):
        numbers[name] = [getattr(run, name) for run in runs]
    numbers["named"] = [record.custom_id is not None for record in records]
    numbers["outcome"] = [0 if record.status == 200 else 2 if record.agent == SOURCE else 1 for record in records]
    numbers["replica"] = [
        replicas.number(Replica(record.agent, run.slot, run.incarnation, run.node, run.version))
        if run is not _NEVER
        else 0
        for record, run in zip(records, runs, strict=True)
    ]
    texts = {
        "custom_id": Ragged.of([record.custom_id or b"" for record in records]),
        "response": Ragged.of([record.body for record in records]),
        "token_ids": Ragged.of([run.token_ids for run in runs], "<u4"),
    }
    return Block(numbers, texts)
