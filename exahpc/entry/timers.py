"""When requests must be looked at: at their deadlines, and all of them in turn. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Container, Iterator, Mapping
from heapq import heapify, heappop, heappush

from exahpc.entry.ledger import Record

ROUND_SECONDS = 1.0
"""Time in which `Rounds` comes by everybody once."""
_SLACK = 1024


class Deadlines:
    """Requests that have one, in its order. known: ids of requests that have not ended."""

    def __init__(self, known: Container[str]) -> None:
        self._known = known
        self._heap: list[tuple[float, str]] = []
        self._sweep_at = _SLACK

    def add(self, record: Record) -> None:
        heappush(self._heap, (record.deadline, record.id))
        if len(self._heap) >= self._sweep_at:  # most end long before: their entries must not pile up
            self._heap = [entry for entry in self._heap if entry[1] in self._known]
            heapify(self._heap)
            self._sweep_at = 2 * len(self._heap) + _SLACK

    def due(self, now: float) -> list[str]:
        """Ids whose deadline has come, also of requests that have ended. Each is named once."""
        found = []
        while self._heap and self._heap[0][0] <= now:
            found.append(heappop(self._heap)[1])
        return found


class Rounds:
    """Comes by every request once in ROUND_SECONDS, a share of them at each call: a look at 18,000 streams at once
    would hold up the loop."""

    def __init__(self, records: Mapping[str, Record]) -> None:
        self._records = records
        self._ids: deque[str] = deque()
        self._last = -math.inf

    def add(self, record: Record) -> None:
        self._ids.append(record.id)

    def turn(self, now: float) -> Iterator[Record]:
        """Those whose turn it is. They may end meanwhile."""
        share = min(1.0, (now - self._last) / ROUND_SECONDS)
        self._last = now
        ids, records = self._ids, self._records
        for _ in range(math.ceil(len(ids) * share)):
            number = ids.popleft()
            record = records.get(number)
            if record is not None:
                ids.append(number)
                yield record
