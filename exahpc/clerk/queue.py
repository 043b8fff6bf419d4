"""Which submitted batch runs when, and what becomes of one whose worker ended. Pure; times are seconds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

AGAIN = 75
"""Exit code of a worker that cannot go on now, but may later (EX_TEMPFAIL)."""
DONE = 0
"""Exit code of a worker whose batch has ended, however: its state says how."""
MOST_CRASHES = 5
PAUSE = 10.0
"""Seconds until a worker that could not go on is tried again."""
LONG_LIFE = 300.0
"""Seconds after which a worker counts as having worked: its crash is the first one again."""


@dataclass
class _Entry:
    """One batch that has not ended. since: when its worker started, None while it has none."""

    id: str
    owner: str
    since: float | None = None
    not_before: float = 0.0
    crashes: int = 0


class Queue:
    """Batches that wait or run. most: how many run at once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: dict[str, _Entry] = {}

    def __contains__(self, batch: str) -> bool:
        return batch in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, batch: str, owner: str) -> None:
        self._entries[batch] = _Entry(batch, owner)

    @property
    def waiting(self) -> list[str]:
        """Those that have no worker."""
        return [one.id for one in self._entries.values() if one.since is None]

    def remove(self, batch: str) -> None:
        """One that waits has ended without a worker."""
        del self._entries[batch]

    def start(self, now: float) -> list[str]:
        """What begins to run now: of the owner with the fewest running, then the oldest (ids sort by age)."""
        running = Counter(one.owner for one in self._entries.values() if one.since is not None)
        waiting = [one for one in self._entries.values() if one.since is None and one.not_before <= now]
        started: list[str] = []
        while waiting and running.total() < self._most:
            one = min(waiting, key=lambda entry: (running[entry.owner], entry.id))
            waiting.remove(one)
            one.since = now
            running[one.owner] += 1
            started.append(one.id)
        return started

    def ended(self, batch: str, code: int, now: float) -> bool:
        """The worker of a batch ended with this exit code. True: it crashed so often that the batch has failed."""
        entry = self._entries[batch]
        lived = 0.0 if entry.since is None else now - entry.since
        entry.since = None
        if code == DONE:
            del self._entries[batch]
        elif code == AGAIN:
            entry.not_before, entry.crashes = now + PAUSE, 0
        else:
            entry.crashes = 1 if lived >= LONG_LIFE else entry.crashes + 1
            if entry.crashes >= MOST_CRASHES:
                del self._entries[batch]
                return True
            entry.not_before = now + 2.0 ** (entry.crashes - 1)
        return False
