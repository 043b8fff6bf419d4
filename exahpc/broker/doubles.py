"""Second leases: at the end of a batch, rows that run far longer than others are begun once more elsewhere. Pure.

The book knows nothing of them: a row has one holder there, and becomes done once, by whoever commits it first. So
a second lease needs no place in the commit journal; a new broker takes it back.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from exahpc.batch.intervals import Intervals, Ranges


@dataclass
class Double:
    """Rows of others that one agent runs as well."""

    lease: int
    agent: str
    batch: str
    held: Intervals


class Doubles:
    """All second leases of a broker. A row has at most one."""

    def __init__(self) -> None:
        self._open: dict[int, Double] = {}
        self._rows: dict[str, Intervals] = {}

    def add(self, double: Double) -> None:
        self._open[double.lease] = double
        rows = self._rows.setdefault(double.batch, Intervals())
        for first, last in double.held:
            rows.add(first, last)

    def get(self, lease: int, agent: str, batch: str) -> Double | None:
        found = self._open.get(lease)
        return found if found is not None and (found.agent, found.batch) == (agent, batch) else None

    def single(self, batch: str, ranges: Ranges) -> Ranges:
        """Those of these rows that have no second lease."""
        rows = Intervals(ranges)
        if batch in self._rows:
            rows.remove_all(self._rows[batch].common(ranges))
        return list(rows)

    def done(self, batch: str, ranges: Ranges) -> list[Double]:
        """These rows are done; returns the second leases that end with them."""
        rows = self._rows.get(batch)
        if rows is None or not rows.remove_all(ranges):
            return []
        ended = []
        for double in [double for double in self._open.values() if double.batch == batch]:
            if double.held.remove_all(ranges) and not double.held:
                ended.append(self._open.pop(double.lease))
        return ended

    def give_back(self, double: Double, ranges: Ranges, *, over: bool) -> None:
        """Its agent does not run these rows; over: nor any other of it."""
        self._rows[double.batch].remove_all(double.held.remove_all(list(double.held) if over else ranges))
        if not double.held:
            self._open.pop(double.lease, None)

    def of(self, agent: str) -> set[int]:
        """The second leases of an agent."""
        return {double.lease for double in self._open.values() if double.agent == agent}

    def hello(self, agent: str, alive: Container[int]) -> None:
        """The agent still works on `alive`, and on no other."""
        for lease in self.of(agent):
            if lease not in alive:
                self.give_back(self._open[lease], [], over=True)

    def close(self, batch: str) -> list[Double]:
        """The batch ends; returns its second leases."""
        self._rows.pop(batch, None)
        return [self._open.pop(double.lease) for double in [*self._open.values()] if double.batch == batch]
