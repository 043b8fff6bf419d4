"""Which requests are logged, line by line: those that go wrong, and those whose clients ask for it. Pure.

A client asks with W3C trace context (`traceparent` with the sampled flag, https://www.w3.org/TR/trace-context/),
as OpenTelemetry's libraries send it. Both kinds are bounded: neither a client nor an outage floods the logs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_PARENT = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-([0-9a-f]{2})(?:-.*)?")
_SAMPLED = 1


@dataclass(frozen=True)
class Trace:
    """What the client calls its request, "" when it says nothing. id: of its trace; request: its own x-request-id;
    wanted: it wants the story."""

    id: str = ""
    request: str = ""
    wanted: bool = False


NO_TRACE = Trace()


def trace_of(parent: bytes | None, request: bytes | None) -> Trace:
    """From the header fields `traceparent` and `x-request-id`; what is malformed is passed over, as W3C has it."""
    if parent is None and request is None:
        return NO_TRACE
    own = request.decode() if request and _ID.fullmatch(request) else ""
    found = _PARENT.fullmatch(parent) if parent else None
    if found is None or not found[1].strip(b"0"):
        return Trace(request=own)
    return Trace(found[1].decode(), own, bool(int(found[2], 16) & _SAMPLED))


class Allowance:
    """So many a second, and that many at once. Times in seconds of one clock that does not go back."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst, self._left, self._at = rate, burst, burst, float("-inf")
        self.missed = 0
        """Refused so far."""

    def take(self, now: float) -> bool:
        self._left = min(self._burst, self._left + self._rate * max(0.0, now - self._at))
        self._at = now
        if self._left < 1:
            self.missed += 1
            return False
        self._left -= 1
        return True


class Stories:
    """Of one process."""

    def __init__(self) -> None:
        self._wanted, self._problems = Allowance(20.0, 100.0), Allowance(50.0, 500.0)

    def wanted(self, now: float) -> bool:
        """Whether one more whole story may be told."""
        return self._wanted.take(now)

    def problem(self, now: float) -> bool:
        """Whether one more line about a problem may be."""
        return self._problems.take(now)
