"""The virtual clock: what is due, in order of time, and of equals in the order in which it was planned."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any

_SLICES = 1000
"""Of a second. Events of a later slice are only collected: one heap of a hundred thousand of them would miss the
processor's caches with every step."""

_Event = tuple[float, int, Callable[..., None], tuple[Any, ...]]


class Timeline:
    """now: in seconds since the beginning. Nothing happens but what was planned with `at` or `after`."""

    __slots__ = ("_count", "_due", "_later", "_order", "_slice", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._count = 0
        self._due: list[_Event] = []  # a heap: all up to the end of this slice
        self._slice = 0
        self._later: dict[int, list[_Event]] = {}  # by slice
        self._order: list[int] = []  # a heap: slices in which something is planned

    def at(self, when: float, what: Callable[..., None], *arguments: Any) -> None:
        """Call `what(*arguments)` then, at a finite time; what is planned for the past happens next."""
        self._count += 1
        number = int(when * _SLICES)
        if number <= self._slice:
            heappush(self._due, (when, self._count, what, arguments))
        elif number in self._later:
            self._later[number].append((when, self._count, what, arguments))
        else:
            self._later[number] = [(when, self._count, what, arguments)]
            heappush(self._order, number)

    def after(self, seconds: float, what: Callable[..., None], *arguments: Any) -> None:
        self.at(self.now + seconds, what, *arguments)

    def every(self, seconds: float, what: Callable[[], None], first: float = 0.0) -> None:
        """Call `what` again and again, `first` seconds from now for the first time."""

        def again() -> None:
            what()
            self.after(seconds, again)

        self.after(first, again)

    def run(self, until: float) -> None:
        """Let everything happen that is due by then."""
        last = int(until * _SLICES)
        while True:
            due = self._due
            while due and due[0][0] <= until:
                when, _, what, arguments = heappop(due)
                if when > self.now:
                    self.now = when
                what(*arguments)
            if due or not self._order or self._order[0] > last:
                break
            self._slice = heappop(self._order)
            self._due = self._later.pop(self._slice)
            heapify(self._due)
        self.now = until
