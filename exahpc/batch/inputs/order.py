"""Run order: long rows first, rows with the same beginning together, otherwise as the input has them. Pure.

A long row that begins last keeps one replica busy while all others idle. So rows that may take at least twice as
long as the median come first, those of four times before them, and so on. Rows with the same prompt prefix follow
one another: a replica keeps the prefix in its cache. Each group stands where its first row stands; what nothing
speaks against stays in input order.

Memory: 16 bytes a row at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from zlib import crc32

import numpy as np
import numpy.typing as npt

NEAR, FAR = 256, 2048
"""Bytes of a prompt that make a group, and a group within the group: about 64 and 500 tokens."""
MOST_ROWS = 1 << 28
"""Rows that can be ordered; more stay in input order."""
_BITS = 28
_BYTES_A_TOKEN = 4
_NO_LIMIT = 256
"""Tokens that a row without a limit is taken to make."""
_STEP = 1 << 17
_MOST_DOUBLINGS = 63
_LOW = (1 << 32) - 1

TRAITS = np.dtype([("cost", "<u4"), ("near", "<u4"), ("far", "<u4")])
"""What is kept of each row until the order is known: tokens it may take; CRC-32 of its first NEAR and FAR bytes,
ALONE where it is shorter."""
ALONE = 0
Traits = npt.NDArray[np.void]
U4 = npt.NDArray[np.uint32]
Read = Callable[[int, int], Traits]
"""Traits of rows [first, last)."""


def costs(sizes: npt.NDArray[np.int64], limits: npt.NDArray[np.int64]) -> U4:
    """Tokens that rows may take: of the prompt, by its bytes, and new ones."""
    tokens = sizes // _BYTES_A_TOKEN + np.where(limits > 0, limits, _NO_LIMIT)
    return np.minimum(tokens, _LOW).astype(np.uint32)


def prefixes(lines: Sequence[bytes], markers: Sequence[bytes]) -> tuple[list[int], list[int]]:
    """`near` and `far` of lines whose prompts begin after the first marker that is found, or with the line."""
    near, far = [ALONE] * len(lines), [ALONE] * len(lines)
    for i, line in enumerate(lines):
        if len(line) < NEAR:
            continue
        start = 0
        for marker in markers:
            at = line.find(marker)
            if at >= 0:
                start = at
                break
        length = len(line) - start
        if length >= NEAR:
            near[i] = crc32(line[start : start + NEAR])
            if length >= FAR:
                far[i] = crc32(line[start : start + FAR])
    return near, far


def run_order(rows: int, read: Read) -> U4 | None:
    """The row at each position; None when that is the input order."""
    if not 0 < rows <= MOST_ROWS:
        return None
    median = _median(rows, read)
    rank = _inverse(_sorted_by(_heads(rows, read, "far")))
    near = _heads(rows, read, "near")
    keys = np.empty(rows, np.uint64)
    for first, last in _steps(rows):
        doublings = np.log2(np.maximum(read(first, last)["cost"] / median, 1)).astype(np.uint64)
        group = near[first:last].astype(np.uint64) << _BITS
        keys[first:last] = ((_MOST_DOUBLINGS - doublings) << 2 * _BITS) | group | rank[first:last]
    del near
    keys.sort()
    by_rank, order = _inverse(rank), rank
    for first, last in _steps(rows):
        order[first:last] = by_rank[keys[first:last] & (MOST_ROWS - 1)]
    return None if _is_input_order(order) else order


def _median(rows: int, read: Read) -> float:
    found = np.empty(rows, np.uint32)
    for first, last in _steps(rows):
        found[first:last] = read(first, last)["cost"]
    found.partition(rows // 2)
    return max(1.0, float(found[rows // 2]))


def _heads(rows: int, read: Read, trait: str) -> U4:
    """Of each row, the first row that has the same trait. (Two traits may be the same by chance: then rows stand
    together that need not.)"""
    keys = np.empty(rows, np.uint64)
    for first, last in _steps(rows):
        keys[first:last] = (read(first, last)[trait].astype(np.uint64) << 32) | np.arange(
            first, last, dtype=np.uint64
        )
    keys.sort()
    heads = np.empty(rows, np.uint32)
    trait_before, head = None, np.uint32(0)
    for first, last in _steps(rows):
        traits, members = keys[first:last] >> 32, (keys[first:last] & _LOW).astype(np.uint32)
        begins = np.concatenate([[traits[0] != trait_before], traits[1:] != traits[:-1]])
        known = np.concatenate([[head], members[begins]])
        heads[members] = known[np.cumsum(begins)]
        trait_before, head = traits[-1], known[-1]
    for first, last in _steps(rows):
        alone = np.flatnonzero(read(first, last)[trait] == ALONE) + first
        heads[alone] = alone
    return heads


def _sorted_by(heads: U4) -> U4:
    """Rows by their head, then by themselves."""
    keys = heads.astype(np.uint64)
    del heads
    for first, last in _steps(len(keys)):
        keys[first:last] = (keys[first:last] << 32) | np.arange(first, last, dtype=np.uint64)
    keys.sort()
    order = np.empty(len(keys), np.uint32)
    np.bitwise_and(keys, _LOW, out=order, casting="unsafe")
    return order


def _inverse(order: U4) -> U4:
    """Where each number stands in a permutation."""
    places = np.empty_like(order)
    for first, last in _steps(len(order)):
        places[order[first:last]] = np.arange(first, last, dtype=np.uint32)
    return places


def _is_input_order(order: U4) -> bool:
    return all(np.array_equal(order[a:b], np.arange(a, b, dtype=np.uint32)) for a, b in _steps(len(order)))


def _steps(rows: int) -> Iterator[tuple[int, int]]:
    for first in range(0, rows, _STEP):
        yield first, min(rows, first + _STEP)
