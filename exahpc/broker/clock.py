"""The clock that the broker's pure cores are given."""

from __future__ import annotations

import time


class Clock:
    """Unix time at the start, monotonic from then on: comparable with earlier brokers', never stepping back."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def __call__(self) -> float:
        return self._offset + time.monotonic()
