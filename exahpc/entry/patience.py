"""How long a request waits for a replica. Pure."""

from __future__ import annotations

from exahpc.deployment.spec import Limits
from exahpc.entry.ledger import Record
from exahpc.entry.routing import Router
from exahpc.errors import RequestError


class Patience:
    """While no replica is up at all, requests are held for longer: one is coming back, or is brought up because of
    them. asleep: none runs because none was wanted."""

    def __init__(self, limits: Limits) -> None:
        self._queue = limits.queue_seconds
        self._start = max(limits.queue_seconds, limits.start_seconds)
        self._up_since: float | None = None
        self.asleep = False

    def tick(self, router: Router, now: float) -> None:
        if not router.serves:
            self._up_since = None
        elif self._up_since is None:
            self._up_since = now

    def over(self, record: Record, router: Router, now: float) -> RequestError | None:
        """What a waiting request is told when it has waited long enough.

        Its usual time begins when a replica is up. A request that must run alone waits until one can be emptied.
        """
        if now - record.since < self._queue:
            return None
        last = record.since + self._start
        if self._up_since is not None and not record.alone:
            last = min(last, max(record.since, self._up_since) + self._queue)
        return self._no_room(record, router, now) if now >= last else None

    def _no_room(self, record: Record, router: Router, now: float) -> RequestError:
        if record.alone:
            state = "it must run alone after what happened, and no replica was free (limits.start_seconds)"
        elif self._up_since is not None:
            state = f"{router.ready} replicas are up and full (limits.queue_seconds)"
        elif self.asleep:
            state = "no replica was running, and none has come up (limits.start_seconds)"
        else:
            state = "no replica is up (limits.start_seconds)"
        story = f"; it was interrupted before: {record.why}" if record.deaths else ""
        message = f"no replica took this request within {now - record.since:.0f} s: {state}{story}"
        return RequestError(message, status=503, type="server_error", code="no_capacity")

    @staticmethod
    def too_late(record: Record) -> RequestError:
        """What a request is told whose deadline came."""
        asked = f"the deadline of {record.allowed:g} s (x-exahpc-deadline) has passed"
        where = (
            "while this request waited for a replica" if record.replica is None else "before its answer was done"
        )
        return RequestError(
            f"{asked} {where}", status=504, type="server_error", code="deadline_exceeded", final=True
        )
