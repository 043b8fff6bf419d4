"""What happened to each replica, from look to look: short, bounded, since this broker began. Pure.

A change that is undone between two looks (ten seconds, two after a failure) is not seen here; the log has it, and
counts of restarts tell that there was one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from exahpc.telemetry.map import state_of
from exahpc.telemetry.tally import Seen
from exahpc.wire.messages import Moment, ReplicaState

MOST_MOMENTS = 16
"""Kept of each replica, and of each task."""
_LONGEST = 200  # characters of a text
_TOLD = {"down", "degraded", "tripped", "silent", "restarting"}  # states whose reason is worth telling


class _Task(NamedTuple):
    heard: bool
    life: int
    node: str
    version: str
    replicas: Mapping[int, tuple[int, str]]


class Chronicle:
    """Of one broker."""

    def __init__(self) -> None:
        self._before: dict[str, _Task] = {}
        self._tasks: dict[str, deque[Moment]] = {}
        self._replicas: dict[tuple[str, int], deque[Moment]] = {}

    def look(self, agents: Iterable[Seen], now: float) -> None:
        """Note what differs from the last look. now: Unix time."""
        for seen in agents:
            replicas = {replica.slot: (replica.incarnation, state_of(seen, replica)) for replica in seen.replicas}
            task = _Task(seen.heard, seen.life, seen.node, seen.version, replicas)
            before = self._before.get(seen.key)
            if before == task:
                continue
            self._before[seen.key] = task
            for text in _of_task(before, task):
                self._tasks.setdefault(seen.key, deque(maxlen=MOST_MOMENTS)).append(Moment(now, text))
            old = before.replicas if before is not None else {}
            for replica in seen.replicas:
                was, is_now = old.get(replica.slot), replicas[replica.slot]
                if was != is_now:
                    kept = self._replicas.setdefault((seen.key, replica.slot), deque(maxlen=MOST_MOMENTS))
                    kept.append(Moment(now, _of_replica(was, is_now, replica)))

    def of(self, key: str, slot: int) -> list[Moment]:
        """Of a replica and of its task, oldest first. key: of the task."""
        found = [*self._tasks.get(key, ()), *self._replicas.get((key, slot), ())]
        return sorted(found, key=lambda moment: moment.at)


def _of_task(before: _Task | None, now: _Task) -> list[str]:
    found = []
    if before is None or before.life != now.life:
        if now.heard:
            found.append(f"agent {now.life} is up on {now.node}")
    elif before.heard and not now.heard:
        found.append(f"agent {now.life} on {now.node} is not heard any more")
    elif now.heard and not before.heard:
        found.append(f"agent {now.life} on {now.node} is heard again")
    if before is not None and before.version != now.version:
        found.append(f"version {before.version or 'first'} becomes {now.version or 'first'}")
    return found


def _of_replica(before: tuple[int, str] | None, now: tuple[int, str], replica: ReplicaState) -> str:
    incarnation, state = now
    text = state
    if before is None or before[0] != incarnation:
        text += f", incarnation {incarnation}"
    if replica.story and state in _TOLD:
        text += f": {replica.story}"
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
