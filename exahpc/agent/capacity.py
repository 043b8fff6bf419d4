"""What one replica runs and may still take. Pure bookkeeping; the relay decides.

Room is sequences and KV tokens. A newcomer must fit whole beside what the running sequences are expected to
hold in the end: most answers stop long before the most that they may generate. When too many do not, the replica
lets the latest give way for a while (see `replica.batching`); nothing is lost but their time.

Batch rows take no room from online requests: where a row stands, an online request starts at once, and the replica
lets the row give way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from exahpc.agent.service import Booked, Meter
from exahpc.wire.messages import Load, ReplicaHello

Choice = TypeVar("Choice", bound=Booked)

EXPECTED = 0.5
"""Share of the tokens which a running sequence may still generate that is expected to come."""
_HEADROOM = 8
"""Batch rows leave one place in so many to online requests."""
ONLINE_FIRST_SECONDS = 1.0
"""After an online request was refused, no batch row starts for so long: what comes free is for its next try."""


class Capacity(Generic[Choice]):
    """running: by sequence id; online, rows: choices that wait for a place; outstanding: tokens still to be
    prefilled or generated, waiting ones included; alone: choices that run or wait which nothing may run beside;
    refused: when an online request last found no room; meter: how well it serves."""

    def __init__(self, hello: ReplicaHello, meter: Meter) -> None:
        self.hello = hello
        self.meter = meter
        self.running: dict[int, Choice] = {}
        self._online = self._needs = 0  # of online ones that run: their number, and all that they may come to hold
        self.online: deque[Choice] = deque()
        self.rows: deque[Choice] = deque()
        self.alone: set[Choice] = set()
        self.outstanding = 0
        self.refused = float("-inf")

    @property
    def full(self) -> bool:
        """Whether a further online request would have to wait."""
        return bool(self.online) or bool(self.alone) or self._online >= self.hello.sequences

    def fits(self, need: int) -> bool:
        """Room for an online sequence of `need` tokens now."""
        if self._online >= self.hello.sequences:
            return False
        if self._needs + need <= self.hello.tokens:
            return True  # whatever comes of them
        return self._expected(c for c in self.running.values() if not c.job.row) + need <= self.hello.tokens

    @property
    def load(self) -> Load:
        """For the entries. A running sequence holds its prompt from the start, and its tokens as they come. A
        replica that is emptied for one request has no place for another; batch rows give way to requests."""
        if not self.running and not self.outstanding:
            return Load(self.hello.slot, 0)
        held = sum(c.need - c.left + c.prefill for c in self.running.values() if not c.job.row)
        sequences = self._online + len(self.online)
        if self.alone:
            sequences = max(sequences, self.hello.sequences)
        return Load(self.hello.slot, self.outstanding, sequences, min(1.0, held / self.hello.tokens))

    @staticmethod
    def _expected(running: Iterable[Booked]) -> int:
        """KV tokens of these sequences: what they hold, and a share of what they may still generate."""
        return sum(c.need - int((1 - EXPECTED) * (c.left - c.prefill)) for c in running)

    def _fits_row(self, choice: Choice, now: float) -> bool:
        if now - self.refused < ONLINE_FIRST_SECONDS and not choice.job.alone:
            return False
        if not self.running:
            return True
        if len(self.running) >= self._row_places:
            return False
        kept = self.hello.tokens // _HEADROOM if self.hello.sequences >= _HEADROOM else 0
        return self._expected(self.running.values()) + choice.need <= self.hello.tokens - kept

    @property
    def _row_places(self) -> int:
        return self.hello.sequences - self.hello.sequences // _HEADROOM

    def free(self, now: float) -> int:
        """Batch rows that could start now; 0 while anything waits."""
        if self.alone or self.online or self.rows or now - self.refused < ONLINE_FIRST_SECONDS:
            return 0
        return max(0, self._row_places - len(self.running))

    def wait(self, choice: Choice) -> None:
        """Queue a choice."""
        (self.rows if choice.job.row else self.online).append(choice)
        self.outstanding += choice.left
        if choice.job.alone:
            self.alone.add(choice)

    def next(self, now: float) -> Choice | None:
        """Take the next waiting choice for which there is room: online first, in order, nobody overtakes."""
        if self.online:
            return (
                self.online.popleft() if self._starts(self.online[0]) and self.fits(self.online[0].need) else None
            )
        if self.rows and self._starts(self.rows[0]) and self._fits_row(self.rows[0], now):
            return self.rows.popleft()
        return None

    def _starts(self, choice: Choice) -> bool:
        """Whether it may run beside what runs now. A job that runs alone is all that runs, if it does."""
        if not self.alone or not self.running:
            return True
        running = next(iter(self.running.values())).job
        if choice.job.alone:
            return all(other.job is choice.job for other in self.running.values())
        return not running.alone

    def start(self, choice: Choice, sequence: int) -> None:
        """Give a place to a choice that waited."""
        choice.sequence = sequence
        self.running[sequence] = choice
        if not choice.job.row:
            self._online += 1
            self._needs += choice.need
            self.meter.online = self._online

    def leave(self, choice: Choice) -> bool:
        """Forget a choice that ran or waited. True when the replica runs it."""
        self.outstanding -= choice.left
        choice.left = 0
        self.alone.discard(choice)
        if choice.sequence in self.running:
            del self.running[choice.sequence]
            if not choice.job.row:
                self._online -= 1
                self._needs -= choice.need
                self.meter.online = self._online
            return True
        queue = self.rows if choice.job.row else self.online
        if choice in queue:
            queue.remove(choice)
        return False

    def choices(self) -> Iterator[Choice]:
        """All that depends on this replica."""
        return iter([*self.running.values(), *self.online, *self.rows])
