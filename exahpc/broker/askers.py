"""Which agents ask for batch rows, how much each takes, and who asks in vain. Pure.

All is kept in the order of the last ask, so that asking costs the same however many agents there are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

ACTIVE_SECONDS = 120.0
HUNGRY_SECONDS = 5.0


@dataclass
class Asker:
    """when: time of the last ask; got: rows it was given then; room: the most rows that it ever asked for at once,
    a measure of its size."""

    when: float
    got: int
    room: int


class Askers:
    """Agents that want rows. busy: whether an agent holds rows: then it counts however long ago it asked."""

    def __init__(self, busy: Callable[[str], bool]) -> None:
        self._busy = busy
        self._known: OrderedDict[str, Asker] = OrderedDict()
        self._room = 0

    def ask(self, agent: str, rows: int, now: float) -> Asker:
        """The agent asks for so many rows."""
        known = self._known.setdefault(agent, Asker(now, 0, 0))
        self._known.move_to_end(agent)
        room = max(known.room, rows)
        self._room += room - known.room
        known.when, known.got, known.room = now, 0, room
        self._forget_old(now)
        return known

    def share(self, asker: Asker) -> float:
        """Its part of what all agents can take, in (0, 1]."""
        return asker.room / self._room if self._room else 1.0

    def forget(self, agent: str) -> None:
        known = self._known.pop(agent, None)
        if known is not None:
            self._room -= known.room

    def room(self, agent: str) -> int:
        """At least 1."""
        known = self._known.get(agent)
        return max(1, known.room) if known is not None else 1

    def in_vain(self, now: float) -> list[str]:
        """Agents whose last ask, not long ago, brought nothing; the one that waits longest first."""
        found = []
        for agent, asker in reversed(self._known.items()):
            if now - asker.when >= HUNGRY_SECONDS:
                break
            if not asker.got:
                found.append(agent)
        return found[::-1]

    def _forget_old(self, now: float) -> None:
        """Those that neither asked nor held anything for long have no part in what is left."""
        while self._known:
            agent, asker = next(iter(self._known.items()))
            if now - asker.when < ACTIVE_SECONDS:
                return
            if self._busy(agent):
                self._known.move_to_end(agent)
                asker.when, asker.got = now, max(1, asker.got)
            else:
                self.forget(agent)
