"""How well and how fast a replica serves, as its agent sees it: what `Service` carries. Pure.

A token costs one comparison; times between tokens are taken when somebody looks (each beat) and when a sequence
ends. What is measured stays until something newer replaces it, so an idle replica has nothing new to tell.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from exahpc.telemetry.meters import AgentMeter
from exahpc.wire.messages import Service

ODD_TOKENS = 32
"""A sequence of so many tokens that are all the same one is odd: a replica that computes nothing but zeros or NaN
looks like that, and people rarely ask for it."""
VARIED = -1
_DIGITS = 4  # of seconds


class Timing:
    """One sequence. began: when the replica got it; at: then when its pace was last taken; counted: its tokens
    by then; before: those that it came with; only: the one token that it got so far, or VARIED."""

    __slots__ = ("at", "before", "began", "counted", "only", "tbt", "ttft")

    def __init__(self, now: float) -> None:
        self.began = self.at = now
        self.ttft = self.tbt = 0.0
        self.before = self.counted = 0
        self.only = VARIED

    def look(self, count: int, now: float) -> int:
        """Take the pace since the last look. Without a token since then, it is at most as fast as that.

        Returns the tokens since then."""
        tokens, elapsed = count - self.counted, now - self.at
        if tokens > 0:
            self.tbt = elapsed / tokens
            self.at, self.counted = now, count
        elif elapsed > self.tbt:
            self.tbt = elapsed
        return tokens


class Owner(Protocol):
    """What the books must know of a request (`job.Job`)."""

    @property
    def row(self) -> bool: ...
    @property
    def alone(self) -> bool: ...


class Booked(Protocol):
    """What the books must know of a sequence: `choice.Choice`, or the simulator's. A class would not do: compiled
    code takes only what it names."""

    left: int
    sequence: int

    @property
    def job(self) -> Owner: ...
    @property
    def timing(self) -> Timing: ...
    @property
    def count(self) -> int: ...
    @property
    def new(self) -> int: ...
    @property
    def need(self) -> int: ...
    @property
    def prefill(self) -> int: ...


class Meter:
    """One incarnation of a replica. window: requests that medians are taken of, at most; memory: seconds after
    which a request does not count any more once newer ones have come; agent: measures for all replicas; online:
    sequences of online requests that run now. While there are some, batch rows give way to them: how slow rows are
    then says nothing of the replica, and does not count for its service."""

    def __init__(self, window: int, memory: float, agent: AgentMeter | None = None) -> None:
        self.served = self.failed = self.odd = self.online = 0
        self._memory = memory
        self._agent = agent or AgentMeter()
        self._recent: deque[tuple[float, Timing]] = deque(maxlen=window)

    def first(self, choice: Booked, token: int, now: float) -> None:
        """The first token of a sequence, before the choice has counted it."""
        timing = choice.timing
        timing.ttft, timing.at = now - timing.at, now
        timing.before, timing.counted, timing.only = choice.count, choice.count + 1, token
        self._agent.ttft.seconds(timing.ttft)
        while self._recent and self._recent[0][0] < now - self._memory:
            self._recent.popleft()
        if not self._gives_way(choice):
            self._recent.append((now, timing))

    def ended(self, choice: Booked, now: float) -> bool:
        """A sequence ended well, and was counted and told. True when it looks odd."""
        timing = choice.timing
        if choice.count > timing.counted:
            self._look(choice, now)
        if choice.count == 0:
            return choice.new > 0
        return timing.only != VARIED and choice.count - timing.before >= ODD_TOKENS

    def _look(self, choice: Booked, now: float) -> None:
        timing = choice.timing
        before = timing.tbt
        tokens = timing.look(choice.count, now)
        if tokens > 0:
            self._agent.tbt.seconds(timing.tbt, tokens)
        if self._gives_way(choice):
            timing.tbt = before

    def _gives_way(self, choice: Booked) -> bool:
        return self.online > 0 and choice.job.row

    def service(self, running: Iterable[Booked], now: float) -> Service:
        """The figures as of now."""
        pending: list[float] = []
        for choice in running:
            if choice.prefill:
                if not self._gives_way(choice):
                    pending.append(now - choice.timing.at)
            else:
                self._look(choice, now)
        ttfts = [timing.ttft for _, timing in self._recent]
        ttft = _median(ttfts)
        if ttfts and (late := [age for age in pending if age > ttft]):  # they will be at least that
            ttft = _median(ttfts + late)
        return Service(
            served=self.served,
            failed=self.failed,
            odd=self.odd,
            ttft=round(ttft, _DIGITS),
            tbt=round(_median([timing.tbt for _, timing in self._recent if timing.tbt]), _DIGITS),
            samples=len(self._recent),
        )


def _median(values: list[float]) -> float:
    """The upper one of two; 0 of none."""
    return sorted(values)[len(values) // 2] if values else 0.0
