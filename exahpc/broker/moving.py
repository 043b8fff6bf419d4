"""Tasks on their way from one version to another: which may go, and which have arrived. Pure.

Room and load are counted in sequences: what ready replicas run at once, and what runs or waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from exahpc.wire.messages import ReplicaState

AWAY_SECONDS = 120.0  # for an agent to be back after a change: its supervisor gives up soon after


@dataclass(frozen=True)
class Task:
    """One task of the deployment as the fleet knows it. alive: its agent's beats arrive; version: that its agent
    serves; slots: replicas that it is to have; sequences: those that each of them runs at once."""

    key: str
    pool: str
    version: str
    alive: bool
    slots: int
    sequences: int
    replicas: tuple[ReplicaState, ...] = ()

    @property
    def ready(self) -> int:
        return sum(replica.phase == "ready" for replica in self.replicas) if self.alive else 0

    @property
    def room(self) -> int:
        return self.ready * self.sequences

    @property
    def load(self) -> int:
        return sum(replica.running + replica.waiting for replica in self.replicas)

    def serves(self, version: str) -> bool:
        """All its replicas are ready, at this version."""
        return self.version == version and self.ready >= self.slots


def in_turn(tasks: Iterable[Task]) -> list[Task]:
    """First the first task of each pool, and so on: a canary is to meet all pools."""
    return sorted(tasks, key=lambda task: int(task.key.rpartition("/")[2]))


def may_move(
    keys: Iterable[str], tasks: dict[str, Task], moving: Iterable[str], most: int, load: float
) -> list[str]:
    """Those of `keys` that may leave the traffic now, in order.

    moving: tasks that are on their way already; most: so many at once. What is left serves the load, but one task
    at a time may always go: else a full deployment could never change. A task without a ready replica takes
    nothing away, and one without an agent does not even count.
    """
    gone = set(moving)
    left = sum(task.room for key, task in tasks.items() if key not in gone)
    under_way = len(gone)
    found: list[str] = []
    for key in keys:
        task = tasks[key]
        if task.alive:
            if under_way >= most or (task.room and under_way and left - task.room < load):
                continue
            under_way += 1
            left -= task.room
        found.append(key)
    return found


@dataclass
class _Away:
    """seen: its agent was there since the task was moved, as far as this broker knows; since: of its absence."""

    seen: bool
    since: float | None = None


class Moving:
    """Tasks that were moved and do not serve yet."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        """keys: moved by an earlier broker."""
        self._tasks = {key: _Away(seen=False) for key in keys}
        self.late: set[str] = set()
        """Those that did not arrive in time."""

    def __iter__(self) -> Iterator[str]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, keys: Iterable[str]) -> None:
        self._tasks.update((key, _Away(seen=True)) for key in keys)

    def settle(self, tasks: Sequence[Task], wanted: Callable[[str], str], late: float | None, now: float) -> str:
        """Forget those that serve what is wanted of them, are not wanted now, or are too late; why the last of
        these was, or "". tasks: all that are wanted; late: `rollout.seconds` when they are over, else None."""
        why = ""
        for key in self._tasks.keys() - {task.key for task in tasks}:
            del self._tasks[key]
        for task in tasks:
            away = self._tasks.get(task.key)
            if away is None:
                continue
            away.seen |= task.alive
            away.since = None if task.alive else now if away.since is None else away.since
            gone = away.since is not None and now - away.since > AWAY_SECONDS
            if not (gone or late is not None or task.serves(wanted(task.key))):
                continue
            del self._tasks[task.key]
            if task.serves(wanted(task.key)) or not away.seen:
                continue  # the latter: it was away before this broker came, as a task may be
            self.late.add(task.key)
            why = _why(task, late)
        return why


def _why(task: Task, late: float | None) -> str:
    if not task.alive:
        return f"{task.key} was not back {AWAY_SECONDS:g} s after its agent ended"
    story = next((replica.story for replica in task.replicas if replica.story), "")
    return f"{task.key} was not ready within rollout.seconds = {late:g}" + (f" ({story})" if story else "")
