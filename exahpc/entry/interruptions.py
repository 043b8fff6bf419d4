"""What becomes of a request whose attempt died under it, and which requests may kill replicas. Pure.

Most deaths say nothing about the request: a node was lost, a task was drained, an agent was killed. A replica's
own exit may be its fault, or that of anyone who ran beside it. After two of those it runs alone, on a replica
where nothing else does; only if that replica ends by itself too is it quarantined. Whoever was merely its
neighbour gets its answer there.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b

from exahpc.entry.ledger import Record
from exahpc.errors import RequestError

SUSPECT = 2
"""Deaths by a replica's own exit after which a request runs alone."""
REMEMBERED = 1024
"""Quarantined bodies that are remembered."""
MEMORY_SECONDS = 600.0


class Interruptions:
    """attempts: how often one request may be sent to a replica. Counts what it decided, for /metrics."""

    def __init__(self, attempts: int) -> None:
        self._attempts = attempts
        self.remembered: OrderedDict[bytes, float] = OrderedDict()
        """Fingerprints of what was quarantined, and until when; the newest last."""
        self.suspects = self.quarantined = 0

    def arrives(self, record: Record, now: float) -> None:
        """A fresh request: one that was quarantined lately, and comes again with the same key, runs alone."""
        while self.remembered and next(iter(self.remembered.values())) <= now:
            self.remembered.popitem(last=False)
        if _fingerprint(record) in self.remembered:
            record.alone = True
            self.suspects += 1

    def died(self, record: Record, why: str, *, own_exit: bool, now: float) -> RequestError | None:
        """The attempt is over (`record.deaths` counts it). None: the request goes on elsewhere."""
        if own_exit:
            record.own_exits += (f"{record.shun}: {why}",)
            if record.alone:
                return self._convict(record, now)
            if len(record.own_exits) >= SUSPECT:
                record.alone = True
                self.suspects += 1
        if record.deaths >= self._attempts:
            message = f"this request was interrupted {record.deaths} times (limits.attempts; last: {why})"
            return RequestError(message, status=502, type="server_error", code="attempts", final=True)
        return None

    def cleared(self, record: Record) -> None:
        """It ran alone and came to its end: what killed the replicas was something else."""
        self.remembered.pop(_fingerprint(record), None)

    def _convict(self, record: Record, now: float) -> RequestError:
        self.quarantined += 1
        mark = _fingerprint(record)
        self.remembered[mark] = now + MEMORY_SECONDS
        self.remembered.move_to_end(mark)
        if len(self.remembered) > REMEMBERED:
            self.remembered.popitem(last=False)
        deaths = "; ".join(f"({number}) {story}" for number, story in enumerate(record.own_exits, 1))
        message = (
            f"this request is quarantined: {len(record.own_exits)} replicas ended by themselves while they worked "
            f"on it, the last one on nothing else: {deaths}"
        )
        return RequestError(message, status=500, type="server_error", code="quarantined", final=True)


def _fingerprint(record: Record) -> bytes:
    """Of the body and the key that sent it."""
    return blake2b(record.body, key=blake2b(record.key.encode()).digest(), digest_size=16).digest()
