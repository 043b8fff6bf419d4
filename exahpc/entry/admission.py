"""Who waits, and in which order. Pure.

First come interrupted requests, in the order of their interruption: their clients wait in the middle of an answer.
They are never refused for want of room: they were admitted. Then fresh ones, fairly between API keys (see `fair`).
Then, when nobody else waits, those that asked for `service_tier: "flex"`.

Requests stand in lanes: those of one lane can go to the same replicas, and nobody overtakes in it unfairly; a lane
whose first request fits nowhere does not hold up the others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection

from exahpc.entry.fair import Clock, FairQueue
from exahpc.entry.ledger import Record
from exahpc.entry.pace import Pace
from exahpc.errors import RequestError

ALONE = "alone"
"""The lane of requests that nothing may run beside."""


class Lane:
    """Requests that can go to the same replicas."""

    __slots__ = ("flex", "fresh", "interrupted")

    def __init__(self, clock: Clock) -> None:
        self.interrupted: OrderedDict[str, Record] = OrderedDict()
        self.fresh, self.flex = FairQueue(clock), FairQueue(clock)

    def __len__(self) -> int:
        return len(self.interrupted) + len(self.fresh) + len(self.flex)

    def first(self) -> tuple[int, float, Record] | None:
        """(rank, tag, request) of who is next: among lanes, the lowest rank and tag goes first."""
        if self.interrupted:
            record = next(iter(self.interrupted.values()))
            return 0, record.since, record
        for rank, queue in ((1, self.fresh), (2, self.flex)):
            if (found := queue.first()) is not None:
                return rank, *found
        return None

    def queue(self, record: Record) -> FairQueue:
        return self.flex if record.tier == "flex" else self.fresh


class Admission:
    """The line of requests that no replica can take now. most: fresh ones at most; most_per_key: of one key."""

    def __init__(self, most: int, most_per_key: int | None, pace: Pace) -> None:
        self._most, self._most_per_key = most, most_per_key
        self._pace = pace
        self._clock = Clock()
        self._lanes: dict[str, Lane] = {}
        self._fresh: dict[str, OrderedDict[str, Record]] = {}  # by key, the newest last
        self._flex: OrderedDict[str, Record] = OrderedDict()
        self._fresh_count = 0
        self.size = 0
        self.tokens = 0
        """Tokens that the waiting requests still want."""

    def __len__(self) -> int:
        return self.size

    def waits(self, lane: str) -> bool:
        """Whether anybody of this lane waits: a newcomer goes behind."""
        return lane in self._lanes and len(self._lanes[lane]) > 0

    def enter(self, record: Record) -> Record | None:
        """A fresh request joins the end of its key's line.

        When the line is full, somebody must go who waits already: the newest "flex" request for one that is not,
        else the newest request of the key that has most of them, if those are more than the newcomer's key has.
        Returns who that is; it has left the line. Raises RequestError (429) when it is the newcomer.
        """
        gone = None
        own = len(self._fresh.get(record.key, ()))
        if self._most_per_key is not None and own >= self._most_per_key:
            raise self._full(f"{own} requests of this API key wait already (limits.max_waiting_per_key)", own)
        if self._fresh_count >= self._most:
            gone = self._giving_way(record, own)
            if gone is None:
                waiting = self._fresh_count
                why = f"all replicas are busy and {waiting} requests wait already (limits.max_waiting)"
                raise self._full(why, waiting)
            self.leave(gone)
        self._count(record)
        self._join(record).queue(record).push(record)
        return gone

    def gave_way(self) -> RequestError:
        """What a request is told that had to leave for another one's sake."""
        return self._full("the line is full (limits.max_waiting), and others have less in it", self._fresh_count)

    def _giving_way(self, record: Record, own: int) -> Record | None:
        if record.tier == "flex" or not self._fresh:
            return None
        if self._flex:
            return self._flex[next(reversed(self._flex))]
        largest = max(self._fresh.values(), key=len)
        return largest[next(reversed(largest))] if len(largest) > own + 1 else None

    def _full(self, why: str, ahead: int) -> RequestError:
        seconds = self._pace.retry_after(ahead)
        return RequestError(
            f"{why}: try again in {seconds} s",
            status=429,
            type="rate_limit_error",
            code="rate_limit_exceeded",
            retry_after=seconds,
        )

    def enter_again(self, record: Record, *, front: bool) -> None:
        """An admitted request waits again; front: its replica was busy, it was next already.

        It is not refused, but counts against the bounds if nothing of it was begun yet.
        """
        lane = self._join(record)
        if not record.deaths:
            self._count(record, oldest=True)
            lane.queue(record).push_back(record)
            return
        lane.interrupted[record.id] = record
        if front:
            lane.interrupted.move_to_end(record.id, last=False)

    def _join(self, record: Record) -> Lane:
        self.size += 1
        self.tokens += record.tokens
        record.line = ALONE if record.alone else record.lane
        lane = self._lanes.get(record.line)
        if lane is None:
            lane = self._lanes[record.line] = Lane(self._clock)
        return lane

    def next(self, blocked: Collection[str] = ()) -> Record | None:
        """Who goes next, of the lanes that are not blocked."""
        firsts = [first for name, lane in self._lanes.items() if name not in blocked and (first := lane.first())]
        return min(firsts, key=lambda first: first[:2])[2] if firsts else None

    def take(self, record: Record) -> None:
        """`record`, which is `next`, goes to a replica."""
        self._leave(record, served=True)
        self._pace.left += 1

    def leave(self, record: Record) -> None:
        """It has ended; no error when it did not wait."""
        if record.line is not None:
            self._leave(record, served=False)

    def _leave(self, record: Record, *, served: bool) -> None:
        assert record.line is not None
        lane = self._lanes[record.line]
        if lane.interrupted.pop(record.id, None) is None:
            queue = lane.queue(record)
            if served:
                queue.take(record)
            else:
                queue.remove(record)
        self.size -= 1
        self.tokens -= record.tokens
        record.line = None
        self._uncount(record)

    def _count(self, record: Record, *, oldest: bool = False) -> None:
        own = self._fresh.setdefault(record.key, OrderedDict())
        for line in (own, self._flex) if record.tier == "flex" else (own,):
            line[record.id] = record
            if oldest:
                line.move_to_end(record.id, last=False)
        self._fresh_count += 1

    def _uncount(self, record: Record) -> None:
        own = self._fresh.get(record.key)
        if own is None or own.pop(record.id, None) is None:
            return  # interrupted
        self._fresh_count -= 1
        self._flex.pop(record.id, None)
        if not own:
            del self._fresh[record.key]

    def oldest(self, now: float) -> float:
        """Seconds that the first in line waits; the longest of all lanes, but for requests that must run alone."""
        firsts = [first for name, lane in self._lanes.items() if name != ALONE and (first := lane.first())]
        return max((now - first[2].since for first in firsts), default=0.0)

    def by_tier(self) -> dict[str, int]:
        """How many wait, for /metrics."""
        lanes = self._lanes.values()
        return {
            "interrupted": sum(len(lane.interrupted) for lane in lanes),
            "online": sum(len(lane.fresh) for lane in lanes),
            "flex": sum(len(lane.flex) for lane in lanes),
        }
