"""How much of a plan batch rows may have, so that online sequences hardly notice them. Pure."""

from __future__ import annotations

from exahpc.replica.blocks import BLOCK
from exahpc.replica.limits import Limits
from exahpc.replica.sequence import Sequence

_SHARE = 0.15
"""By which rows may lengthen the iterations of online sequences, on the mean."""
_LATELY = 1000
"""Plans after an online sequence within which the next one is expected."""


class Beside:
    """Keeps an account of the tokens that rows may have. Without online sequences there is no bound.

    online: some are there now; lately: none is, but one may come, since one was there in the last thousand plans.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._seen = -_LATELY
        self._spare = 0.0
        self.online = self.lately = False

    def look(self, running: list[Sequence], step: int) -> None:
        """At the beginning of each plan, with all that runs. step: plans so far."""
        self.online = any(not s.message.batch for s in running)
        if self.online:
            self._seen = step
        else:
            self._spare = 0.0
        self.lately = not self.online and step - self._seen < _LATELY

    def earn(self, tokens: int) -> None:
        """The plan has so many online tokens. A block of a prompt can always be saved for."""
        if self.online:
            more = _SHARE * (self._limits.fixed + min(tokens, self._limits.budget))
            self._spare = min(self._spare + more, max(float(BLOCK), more))

    def most(self, sequence: Sequence, count: int) -> int:
        """How many of its next `count` tokens, which are no more than `cut` allows, to compute in this plan.

        What tokens far into a sequence cost beyond the account is taken from the plans that follow.
        """
        if not (self.online and sequence.message.batch):
            return count
        if not count or self._spare < min(BLOCK, count):
            return 0
        weight = self._limits.weight(sequence.cached, True)
        if count > 1:
            count = sequence.cut(min(count, max(BLOCK, int(self._spare / weight))))
        self._spare -= count * weight
        return count


def due(decoding: list[Sequence], running: list[Sequence], lanes: int) -> list[Sequence]:
    """A lane's share of those that decode, first who waited longest; with an even share of online ones.

    running: all that run, those included which decode in other lanes.
    """
    elsewhere = [s for s in running if s.awaited]
    everyone = len(decoding) + len(elsewhere)
    online = [s for s in decoding if not s.message.batch]
    rows = [s for s in decoding if s.message.batch]
    of_online = len(online) + sum(not s.message.batch for s in elsewhere)
    for some in (online, rows):
        some.sort(key=lambda s: (s.turn, s.key))
    online = online[: -(-of_online // lanes)]
    return [*online, *rows[: -(-everyone // lanes) - len(online)]]
