"""Sets of row numbers as sorted, disjoint [first, last) ranges. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

Ranges = list[tuple[int, int]]
Columns = tuple[list[int], list[int]]
"""Ranges as (firsts, lasts)."""


def ranges_of(numbers: Iterable[int]) -> Ranges:
    """The shortest ranges that hold exactly these numbers (in any order, repeats allowed)."""
    found: Ranges = []
    for number in sorted(set(numbers)):
        if found and found[-1][1] == number:
            found[-1] = (found[-1][0], number + 1)
        else:
            found.append((number, number + 1))
    return found


def count(ranges: Iterable[tuple[int, int]]) -> int:
    """How many numbers the (disjoint) ranges hold."""
    total = 0
    for first, last in ranges:
        total += last - first
    return total


class Intervals:
    """A mutable set of numbers; each operation costs O(ranges touched + moved)."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._size = 0
        for first, last in ranges:
            self.add(first, last)

    @classmethod
    def of_columns(cls, columns: Columns) -> Intervals:
        """From what `columns` gave: sorted, disjoint, with gaps between."""
        made = cls()
        made._firsts, made._lasts = columns
        made._size = sum(made._lasts) - sum(made._firsts)
        return made

    def columns(self) -> Columns:
        """A copy, as cheap as one can be."""
        return self._firsts[:], self._lasts[:]

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(zip(self._firsts, self._lasts, strict=True)))

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._firsts, number) - 1
        return at >= 0 and number < self._lasts[at]

    def add(self, first: int, last: int) -> None:
        """Add [first, last); numbers already there stay once."""
        if first >= last:
            return
        if not self._lasts or first > self._lasts[-1]:  # most sets grow at their end
            self._firsts.append(first)
            self._lasts.append(last)
            self._size += last - first
            return
        low = bisect_left(self._lasts, first)  # first range that touches or follows
        high = bisect_right(self._firsts, last)  # one past the last range that touches
        if low < high:
            first = min(first, self._firsts[low])
            last = max(last, self._lasts[high - 1])
        self._size += (last - first) - sum(self._lasts[i] - self._firsts[i] for i in range(low, high))
        self._firsts[low:high] = [first]
        self._lasts[low:high] = [last]

    def remove(self, first: int, last: int) -> Ranges:
        """Take [first, last) out; returns the ranges that were really there."""
        if first >= last:
            return []
        low = bisect_right(self._lasts, first)
        high = bisect_left(self._firsts, last)
        if low >= high:
            return []
        if high - low == 1:
            return [self._cut(low, first, last)]
        removed = [(max(first, self._firsts[i]), min(last, self._lasts[i])) for i in range(low, high)]
        left = [(self._firsts[low], first)] if self._firsts[low] < first else []
        right = [(last, self._lasts[high - 1])] if last < self._lasts[high - 1] else []
        self._firsts[low:high] = [f for f, _ in left + right]
        self._lasts[low:high] = [last_ for _, last_ in left + right]
        self._size -= count(removed)
        return removed

    def _cut(self, at: int, first: int, last: int) -> tuple[int, int]:
        """Take [first, last) out of the one range that it touches; returns what was there."""
        low, high = self._firsts[at], self._lasts[at]
        if first <= low and last >= high:
            del self._firsts[at], self._lasts[at]
            self._size -= high - low
            return low, high
        if first <= low:
            self._firsts[at] = last
            first = low
        elif last >= high:
            self._lasts[at] = first
            last = high
        else:
            self._lasts[at] = first
            self._firsts.insert(at + 1, last)
            self._lasts.insert(at + 1, high)
        self._size -= last - first
        return first, last

    def common(self, ranges: Iterable[tuple[int, int]]) -> Ranges:
        """Those of these (disjoint) ranges that are in the set."""
        found: Ranges = []
        for first, last in ranges:
            low, high = bisect_right(self._lasts, first), bisect_left(self._firsts, last)
            found += [(max(first, self._firsts[i]), min(last, self._lasts[i])) for i in range(low, high)]
        return found

    def remove_all(self, ranges: Iterable[tuple[int, int]]) -> Ranges:
        return [gone for first, last in ranges for gone in self.remove(first, last)]

    def first(self, n: int) -> tuple[int, int] | None:
        """The first up to n numbers that lie together; None when empty."""
        return (self._firsts[0], min(self._lasts[0], self._firsts[0] + n)) if self._firsts else None
