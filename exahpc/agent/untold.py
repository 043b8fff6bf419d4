"""What entries have not been told yet of what was generated for them. Pure.

Each frame costs the entry a write to a client's socket, and that is most of what a token costs. So under load,
streams of a replica wait for its next step, as long as nobody waits longer than the *pause*: then a frame carries
two or three tokens. Nobody waits for a step that would come too late anyway.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from exahpc.agent.actions import Action, ToPeer
from exahpc.agent.choice import Choice
from exahpc.wire.messages import Frame, Frames

PROGRESS_SECONDS = 0.25
"""Ids without text for the client (no stream, or held back) are told to the entry this often."""
LONGEST_PAUSE = 0.05
"""The most that text waits: from 20,000 tokens a second, for which a core of the entry would not do, ..."""
PAUSE = LONGEST_PAUSE / 20_000
"""... and below in proportion: nobody waits for a step of 20 ms below 8,000. The first token of a stream and its
end never wait."""
_WINDOW = 0.25  # seconds over which tokens are counted


class Bunch:
    """Choices of one replica with text for a client, in order. until: when they are told at the latest; infinite
    when there are none."""

    __slots__ = ("choices", "heard", "until")

    def __init__(self) -> None:
        self.choices: dict[Choice, None] = {}
        self.until = math.inf
        self.heard = -math.inf  # when the last step came

    def stepped(self, now: float, pause: float) -> None:
        """Its replica has made a step, which may have added choices."""
        step, self.heard = now - self.heard, now
        if self.choices:
            self.until = min(self.until, now + pause)
            if now + step > self.until:
                self.until = now

    def take(self) -> dict[Choice, None]:
        self.until = math.inf
        taken, self.choices = self.choices, {}
        return taken


class Untold:
    """ids: choices with ids for the entry only. They and those in bunches are told in the order in which they
    came; bunches, one after the other."""

    def __init__(self) -> None:
        self.ids: dict[Choice, None] = {}
        self._ids_at = self._counted_at = -math.inf
        self._bunches: dict[int, Bunch] = {}
        self._tokens = 0
        self._pause = 0.0

    def bunch(self, slot: int) -> Bunch:
        found = self._bunches.get(slot)
        if found is None:
            found = self._bunches[slot] = Bunch()
        return found

    def stepped(self, bunch: Bunch, now: float) -> None:
        """The replica of this bunch has made a step."""
        self._tokens += len(bunch.choices)
        past = now - self._counted_at
        if past >= _WINDOW:
            self._pause = min(LONGEST_PAUSE, PAUSE * self._tokens / past)
            self._tokens, self._counted_at = 0, now
        bunch.stepped(now, self._pause)

    def soon(self, choice: Choice) -> None:
        """There is something to tell of it, and no reason to wait."""
        bunch = self.bunch(choice.job.slot)
        bunch.choices[choice] = None
        bunch.until = -math.inf

    @property
    def until(self) -> float:
        """When something is to be told next; infinite when nothing waits."""
        return min((bunch.until for bunch in self._bunches.values()), default=math.inf)

    def due(self, now: float, *, everything: bool) -> list[Action]:
        """Take what is to be told now, one message a peer. everything: also what may still wait."""
        due: dict[Choice, None] = {}
        for bunch in self._bunches.values():
            if bunch.until <= now or everything:
                due |= bunch.take()
        if now - self._ids_at >= PROGRESS_SECONDS:
            self._ids_at = now
            due |= self.ids
            self.ids = {}
        return frames(due) if due else []

    def forget(self, choices: Iterable[Choice]) -> None:
        """Nobody waits for these any more."""
        for choice in choices:
            self.bunch(choice.job.slot).choices.pop(choice, None)
            self.ids.pop(choice, None)


def frames(choices: Iterable[Choice]) -> list[Action]:
    """All that these have to tell, one message a peer; batch rows have no peer."""
    by_peer: dict[bytes, list[Frame]] = {}
    for choice in choices:
        peer = choice.job.peer
        if peer is not None and choice.untold:
            by_peer.setdefault(peer, []).append(choice.take_frame())
    return [ToPeer(peer, Frames(told)) for peer, told in by_peer.items()]
