"""What agents and entries measure, and when they tell the broker: every ten seconds, failures with the next beat.

A request costs a few additions, a token none. What was measured is kept until it could be sent; when there is
nothing to tell, nothing is sent. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from exahpc.telemetry.histogram import Histogram
from exahpc.wire.messages import AgentRollup, EntryRollup, Measure, Message, Sketch

EVERY = 10.0
"""Seconds between two rollups of one process."""
CLIENT_LEFT = 499
"""Status of a request whose client went away, as nginx has it."""

Send = Callable[[Message], bool]


class _Meter:
    def __init__(self) -> None:
        self._next = float("-inf")
        self._clear()

    def _clear(self) -> None:
        self.ttft, self.tbt, self.e2e, self.queue = Histogram(), Histogram(), Histogram(), Histogram()
        self.prompt, self.output = Histogram(), Histogram()

    def _sketches(self) -> dict[Measure, Sketch]:
        measures: dict[Measure, Histogram] = {
            "ttft": self.ttft,
            "tbt": self.tbt,
            "e2e": self.e2e,
            "queue": self.queue,
            "prompt": self.prompt,
            "output": self.output,
        }
        return {name: found.sketch() for name, found in measures.items() if found.counts}


class AgentMeter(_Meter):
    """One agent, all its replicas. Call `push` after each beat."""

    def ended(self, seconds: float, prompt: int, output: int) -> None:
        """A request or batch row ended well, so long after the agent got it."""
        self.e2e.seconds(seconds)
        self.prompt.add(prompt)
        self.output.add(output)

    def push(self, send: Send, now: float) -> None:
        """send: to the broker, False when none is connected."""
        if now < self._next:
            return
        sketches = self._sketches()
        if sketches and send(AgentRollup(sketches)):
            self._next = now + EVERY
            self._clear()


class Totals(NamedTuple):
    """What an entry counts elsewhere, since it started: see EntryRollup."""

    resent: int
    busy: int
    known: int
    affine: int
    refused: Mapping[str, int]


class EntryMeter(_Meter):
    """One entry. Call `push` after each beat."""

    def __init__(self) -> None:
        super().__init__()
        self._told = Totals(0, 0, 0, 0, {})
        self._urgent = False

    def _clear(self) -> None:
        super()._clear()
        self.statuses: Counter[int] = Counter()
        self._urgent = False

    def done(self, seconds: float) -> None:
        self.e2e.seconds(seconds)
        self.statuses[200] += 1

    def refused(self, status: int) -> None:
        """A request ended with this HTTP status, or CLIENT_LEFT."""
        self.statuses[status] += 1
        self._urgent |= status >= 500

    def push(self, send: Send, totals: Totals, now: float) -> None:
        """send: to the broker, False when none is connected."""
        if now < self._next and not self._urgent:
            return
        told = self._told
        if not self.statuses and not self.ttft.counts and not self.queue.counts and totals == told:
            return
        refused = {code: n for code, count in totals.refused.items() if (n := count - told.refused.get(code, 0))}
        rollup = EntryRollup(
            dict(self.statuses),
            refused,
            totals.resent - told.resent,
            totals.busy - told.busy,
            totals.known - told.known,
            totals.affine - told.affine,
            self._sketches(),
        )
        if send(rollup):
            self._next = now + EVERY
            self._told = totals._replace(refused=dict(totals.refused))
            self._clear()
