"""Histograms that merge exactly: one fixed layout of log-spaced buckets for whole numbers. Pure.

Sixteen buckets an octave. Bucket i > 0 holds values in (2^((i-1)/16), 2^(i/16)], bucket 0 holds 0 and 1, the last
one everything above 2^40: in microseconds that is 1 us to 12 days. A bucket's values are told as its geometric
middle, so a quantile is off by a factor of 2^(1/32) at most, about 2.2 %: the bound of DDSketch (Masson, Rim, Lee:
"DDSketch", VLDB 2019) with gamma = 2^(1/16).

Counts and sums are whole numbers, so that the order of merging changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from math import ceil, log2

from exahpc.wire.messages import Sketch

PER_OCTAVE = 16
LAST = 40 * PER_OCTAVE
_HIGHEST = 2**40
ERROR = 2 ** (1 / (2 * PER_OCTAVE)) - 1
"""Relative error of a quantile at most, for values from 1 to 2^40."""


def bucket(value: int) -> int:
    """Of a whole number; negative ones count as 0 (a clock that went back)."""
    if value <= 1:
        return 0
    return ceil(PER_OCTAVE * log2(value)) if value < _HIGHEST else LAST


def edge(index: int) -> float:
    """Highest value of a bucket."""
    return float(2 ** (index / PER_OCTAVE))


class Histogram:
    """Mutable; `sketch` is its frozen form on the wire."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.total = 0

    @staticmethod
    def of(sketch: Sketch) -> Histogram:
        """Counts of buckets that do not exist are taken for their neighbours'."""
        found = Histogram()
        found.merge(sketch)
        return found

    def add(self, value: int, times: int = 1) -> None:
        """Observe a value so many times."""
        index = bucket(value)
        self.counts[index] = self.counts.get(index, 0) + times
        self.total += value * times

    def seconds(self, value: float, times: int = 1) -> None:
        """Observe a time; it is kept in microseconds. As `add`, in one frame: a request does this five times."""
        micro = int(value * 1e6)
        index = ceil(PER_OCTAVE * log2(micro)) if 1 < micro < _HIGHEST else bucket(micro)
        counts = self.counts
        counts[index] = counts.get(index, 0) + times
        self.total += micro * times

    def merge(self, other: Histogram | Sketch) -> None:
        counts = self.counts
        for index, count in other.counts.items():
            index = min(max(index, 0), LAST)
            counts[index] = counts.get(index, 0) + count
        self.total += other.total

    def sketch(self) -> Sketch:
        return Sketch(dict(sorted(self.counts.items())), self.total)

    @property
    def count(self) -> int:
        return sum(self.counts.values())

    def quantile(self, share: float) -> float | None:
        """The smallest value that `share` (0..1) of the observations do not exceed, within ERROR; None of none."""
        count = self.count
        if count == 0:
            return None
        rank, seen = max(1, math.ceil(share * count)), 0
        for index in sorted(self.counts):
            seen += self.counts[index]
            if seen >= rank:
                return edge(index) * (1 if index == 0 else 2 ** (-1 / (2 * PER_OCTAVE)))
        raise AssertionError("counts changed while they were summed")

    def octaves(self, first: int, last: int) -> Iterator[tuple[float, int]]:
        """(2^n, observations up to it) for n in [first, last]: exact, since octaves end where buckets do."""
        ordered, at, seen = sorted(self.counts), 0, 0
        for power in range(first, last + 1):
            while at < len(ordered) and ordered[at] <= power * PER_OCTAVE:
                seen += self.counts[ordered[at]]
                at += 1
            yield float(2**power), seen
