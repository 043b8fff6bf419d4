"""A queue that is fair between API keys, by tokens. Pure.

Start-time fair queueing (P. Goyal, H. Vin, H. Cheng: Start-time Fair Queuing, SIGCOMM 1996). Each key is a flow.
The first request of a flow carries a start tag: where the flow's last one ended, or the present virtual time if
that is later; it ends its tokens further on. The lowest tag goes first, and becomes the virtual time. So a key
with a thousand waiting requests delays another key by one request, and keys that both wait get equal shares of
tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heappop, heappush

from exahpc.entry.ledger import Record


class Clock:
    """Virtual time, in tokens: queues of one clock can be compared."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 0.0


class _Flow:
    """What waits of one key. tag: of its first request; entry: its valid place in the heap."""

    __slots__ = ("entry", "plain", "tag", "urgent")

    def __init__(self) -> None:
        self.urgent: OrderedDict[str, Record] = OrderedDict()
        self.plain: OrderedDict[str, Record] = OrderedDict()
        self.tag = 0.0
        self.entry: tuple[float, int, str] | None = None

    @property
    def first(self) -> Record | None:
        line = self.urgent or self.plain
        return next(iter(line.values())) if line else None

    def line(self, record: Record) -> OrderedDict[str, Record]:
        return self.urgent if record.tier == "priority" else self.plain


class FairQueue:
    """Of a key's requests, its own urgent ones go first; they never overtake those of another key."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._flows: dict[str, _Flow] = {}
        self._heap: list[tuple[float, int, str]] = []
        self._pushed = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, record: Record) -> None:
        """It joins the end of its key's line."""
        flow = self._flows.setdefault(record.key, _Flow())
        if flow.first is None:  # time that a key did not use is not saved up
            flow.tag = max(flow.tag, self._clock.now)
            self._enter(record.key, flow)
        flow.line(record)[record.id] = record
        self._size += 1

    def push_back(self, record: Record) -> None:
        """It was taken, but not served: it is its key's first again, as if nothing had happened."""
        flow = self._flows.setdefault(record.key, _Flow())
        flow.tag = max(flow.tag, self._clock.now) - record.tokens
        self._enter(record.key, flow, front=True)
        line = flow.line(record)
        line[record.id] = record
        line.move_to_end(record.id, last=False)
        self._size += 1

    def _enter(self, key: str, flow: _Flow, *, front: bool = False) -> None:
        """front: before those of the same tag."""
        self._pushed += 1
        flow.entry = (flow.tag, -self._pushed if front else self._pushed, key)
        heappush(self._heap, flow.entry)

    def first(self) -> tuple[float, Record] | None:
        """(tag, request) of who is next."""
        while self._heap:
            entry = self._heap[0]
            flow = self._flows.get(entry[2])
            if flow is not None and flow.entry == entry:
                record = flow.first
                if record is not None:
                    return entry[0], record
                flow.entry = None
            heappop(self._heap)
            if flow is not None and flow.entry is None and flow.tag <= self._clock.now:
                del self._flows[entry[2]]  # it owes nothing any more
        return None

    def take(self, record: Record) -> None:
        """`record`, which is `first`, is served: its key pays for it."""
        flow = self._flows[record.key]
        self.remove(record)
        self._clock.now = max(self._clock.now, flow.tag)
        flow.tag += record.tokens
        self._enter(record.key, flow)

    def remove(self, record: Record) -> None:
        """It leaves without being served; nobody pays."""
        del self._flows[record.key].line(record)[record.id]
        self._size -= 1
