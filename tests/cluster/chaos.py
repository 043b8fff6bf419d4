"""When chaos strikes what, drawn from a seed. Pure: the share of the work done and a clock in, strikes out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Literal, TypeVar

Domain = Literal["rank", "agent", "node", "broker"]
DOMAINS: tuple[Domain, ...] = ("rank", "agent", "node", "broker")
APART = 30.0
"""Least seconds between two strikes in one fault domain."""
_MORE = 20.0  # further seconds, on the mean
_MOST = 6  # strikes in one domain: where a replica takes minutes to start, the work must still end
_FIRST = 0.05, 0.6  # shares of the work between which each domain is struck first

_T = TypeVar("_T")


class Schedule:
    """Each domain is struck once as the work proceeds, however fast the machine is, and from then on by the clock:
    30 seconds after its last strike at the earliest, 50 on the mean, and six times at most."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._shares = {domain: self._random.uniform(*_FIRST) for domain in DOMAINS}
        self._times: dict[Domain, float] = {}
        self._struck = dict.fromkeys(DOMAINS, 0)

    def due(self, share: float, now: float) -> list[Domain]:
        """What is to be struck; it stays due until it `was_struck`. share: of the work that is done, 0 to 1."""
        return [d for d in DOMAINS if (self._times[d] <= now if d in self._times else self._shares[d] <= share)]

    def was_struck(self, domain: Domain, now: float) -> None:
        self._times[domain] = now + APART + self._random.expovariate(1 / _MORE)
        self._struck[domain] += 1
        if self._struck[domain] == _MOST:
            self._times[domain] = math.inf

    def one_of(self, some: Sequence[_T]) -> _T:
        """The victim."""
        return self._random.choice(some)
