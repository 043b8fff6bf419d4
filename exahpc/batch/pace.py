"""How fast a batch goes, and how long it will take still. Pure."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

WINDOW_SECONDS = 60.0
"""Speed is the mean over so long: rows end in bursts, one for each segment of an agent's report."""


class _Sample(NamedTuple):
    at: float
    rows: int
    tokens: int


class Pace:
    """Fed with counts that only grow; where one shrinks (another broker counts anew), the measure begins again."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque()

    def add(self, now: float, rows: int, tokens: int) -> None:
        """rows, tokens: ended until now (seconds of any clock)."""
        last = self._samples[-1] if self._samples else None
        if last is not None and (rows < last.rows or tokens < last.tokens):
            self._samples.clear()
        self._samples.append(_Sample(now, rows, tokens))
        while len(self._samples) > 2 and self._samples[1].at <= now - WINDOW_SECONDS:
            self._samples.popleft()

    @property
    def _span(self) -> float:
        return self._samples[-1].at - self._samples[0].at if self._samples else 0.0

    @property
    def rows(self) -> float:
        """Rows a second; 0 while unknown."""
        return (self._samples[-1].rows - self._samples[0].rows) / self._span if self._span else 0.0

    @property
    def tokens(self) -> float:
        """Tokens a second; 0 while unknown."""
        return (self._samples[-1].tokens - self._samples[0].tokens) / self._span if self._span else 0.0

    def left(self, rows: int) -> float | None:
        """Seconds for so many more rows; None while nothing moves."""
        return rows / self.rows if self.rows else None


class Lines:
    """When a plain line is due where there is no terminal: after 10 s, then more rarely, at last every minute."""

    def __init__(self, now: float) -> None:
        self._pause = 10.0
        self._due = now + self._pause

    def due(self, now: float) -> bool:
        if now < self._due:
            return False
        self._pause = min(60.0, 1.5 * self._pause)
        self._due = now + self._pause
        return True
