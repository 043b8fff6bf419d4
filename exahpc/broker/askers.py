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
    a measure of its size; part: of what is left, that it may have now; starving: was found to ask in vain."""

    when: float
    got: int = 0
    room: int = 0
    part: float = 0.0
    starving: bool = False


class Askers:
    """Agents that want rows. busy: whether an agent holds rows: then it counts however long ago it asked."""

    def __init__(self, busy: Callable[[str], bool]) -> None:
        self._busy = busy
        self._known: OrderedDict[str, Asker] = OrderedDict()
        self._room = 0
        self._starving = 0

    def ask(self, agent: str, rows: int, now: float) -> Asker:
        """The agent asks for so many rows. It may have half of its share by size; but while some starve, all is
        divided among those: it was handed back for them."""
        known = self._known.setdefault(agent, Asker(now))
        self._known.move_to_end(agent)
        room = max(known.room, rows)
        self._room += room - known.room
        known.when, known.got, known.room = now, 0, room
        self._forget_old(now)
        if known.starving:
            known.part = room / max(room, self._starving)
            known.starving = False
            self._starving -= room
        else:
            known.part = 0.0 if self._starving > 0 else room / (2 * self._room)
        return known

    def forget(self, agent: str) -> None:
        known = self._known.pop(agent, None)
        if known is not None:
            self._room -= known.room
            self._starving -= known.room if known.starving else 0

    def room(self, agent: str) -> int:
        """At least 1."""
        known = self._known.get(agent)
        return max(1, known.room) if known is not None else 1

    def starving(self, now: float) -> list[str]:
        """Agents whose last ask, not long ago, brought nothing; the one that waits longest first."""
        found = []
        self._starving = 0
        for agent, asker in reversed(self._known.items()):
            if now - asker.when >= HUNGRY_SECONDS:
                break
            asker.starving = not asker.got
            if asker.starving:
                self._starving += asker.room
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
