"""The virtual clock: what is due, in order of time, and of equals in the order in which it was planned."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Timeline:
    """now: in seconds since the beginning. Nothing happens but what was planned with `at` or `after`."""

    __slots__ = ("_count", "_due", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._count = 0
        self._due: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def at(self, when: float, what: Callable[..., None], *arguments: Any) -> None:
        """Call `what(*arguments)` then; what is planned for the past happens next."""
        self._count += 1
        heappush(self._due, (when, self._count, what, arguments))

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
        due = self._due
        while due and due[0][0] <= until:
            when, _, what, arguments = heappop(due)
            if when > self.now:
                self.now = when
            what(*arguments)
        self.now = until
