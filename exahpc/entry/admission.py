"""Who waits, in which order, and for how long. Pure.

Nobody overtakes: while requests wait, a new one goes behind them. Interrupted requests go before fresh ones,
because their clients wait in the middle of an answer; they are never refused for want of room: they were admitted.
"""

from __future__ import annotations

from collections import OrderedDict

from exahpc.entry.ledger import Record
from exahpc.errors import RequestError

RETRY_AFTER = 2
"""Seconds named in Retry-After."""


class Admission:
    """The line of requests that no replica can take now. max_waiting: fresh ones at most; patience: in seconds."""

    def __init__(self, max_waiting: int, patience: float) -> None:
        self._max_waiting, self._patience = max_waiting, patience
        self._fresh: OrderedDict[str, Record] = OrderedDict()
        self._interrupted: OrderedDict[str, Record] = OrderedDict()

    def __len__(self) -> int:
        return len(self._fresh) + len(self._interrupted)

    def enter(self, record: Record) -> None:
        """A fresh request joins the end. Raises RequestError (429) when the line is full."""
        if len(self._fresh) >= self._max_waiting:
            raise RequestError(
                f"all replicas are busy and {len(self._fresh)} requests wait already (limits.max_waiting): "
                f"try again in {RETRY_AFTER} s",
                status=429,
                type="rate_limit_error",
                code="rate_limit_exceeded",
            )
        self._fresh[record.id] = record

    def enter_again(self, record: Record, *, front: bool) -> None:
        """An admitted request waits again; front: its replica was busy, it was next already."""
        line = self._interrupted if record.deaths else self._fresh
        line[record.id] = record
        if front:
            line.move_to_end(record.id, last=False)

    def first(self) -> Record | None:
        """Who is next."""
        line = self._interrupted or self._fresh
        return next(iter(line.values())) if line else None

    def leave(self, record: Record) -> None:
        """It was sent or has ended; no error when it did not wait."""
        if self._interrupted.pop(record.id, None) is None:
            self._fresh.pop(record.id, None)

    def overdue(self, now: float) -> list[Record]:
        """Those whose patience is at an end."""
        limit = now - self._patience
        return [r for line in (self._interrupted, self._fresh) for r in line.values() if r.since <= limit]
