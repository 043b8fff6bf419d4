"""Tasks on their way from one version to another: which may go, and which have arrived. Pure.

Room and load are counted in sequences: what ready replicas run at once, and what runs or waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from exahpc.broker.values import NO_WORD, JobWord
from exahpc.wire.messages import ReplicaState

AWAY_SECONDS = 120.0  # for an agent to be back after a change, at the most: its supervisor gives up soon after
FIRST_AWAY, LEAST_AWAY, SLOWER = 60.0, 30.0, 4.0  # before any was seen to come back; after that, times the slowest


@dataclass(frozen=True)
class Task:
    """One task of the deployment as the fleet knows it. alive: its agent's beats arrive; version: that its agent
    serves; slots: replicas that it is to have; sequences: those that each of them runs at once; job: what
    Slurm said of its job since its agent went away."""

    key: str
    pool: str
    version: str
    alive: bool
    slots: int
    sequences: int
    replicas: tuple[ReplicaState, ...] = ()
    job: JobWord = NO_WORD

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

    moving: tasks that are on their way already; most: so many at once. What is left serves the load, and is not
    nothing, but one task at a time may always go: else a full deployment could never change. A task without a
    ready replica takes nothing away, and one without an agent does not even count.
    """
    gone = set(moving)
    left = sum(task.room for key, task in tasks.items() if key not in gone)
    under_way = len(gone)
    found: list[str] = []
    for key in keys:
        task = tasks[key]
        if task.alive:
            if under_way >= most or (task.room and under_way and left - task.room < max(load, 1)):
                continue
            under_way += 1
            left -= task.room
        found.append(key)
    return found


@dataclass
class _Way:
    """due: until when it must serve; seen: its agent was there since the task was moved, as far as this broker
    knows; away: since when it is not; up: it came with the version that is wanted."""

    due: float
    seen: bool
    away: float | None = None
    up: bool = False


class Moving:
    """Tasks that were moved and do not serve yet. late: those that did not in time; slowest: longest time until an
    agent that had gone was back, 0 when none was seen."""

    def __init__(self, seconds: float, keys: Iterable[str] = (), due: float = 0.0, slowest: float = 0.0) -> None:
        """seconds: from an agent's hello until it must serve; keys: moved by an earlier broker; slowest: known
        from earlier."""
        self._seconds, self.slowest = seconds, slowest
        self._ways = {key: _Way(due, seen=False) for key in keys}
        self.late: set[str] = set()

    def __iter__(self) -> Iterator[str]:
        return iter(self._ways)

    def __len__(self) -> int:
        return len(self._ways)

    def add(self, keys: Iterable[str], due: float) -> None:
        """due: as far as can be told before they have drained."""
        self._ways.update((key, _Way(due, seen=True)) for key in keys)

    def settle(self, tasks: Sequence[Task], wanted: Callable[[str], str], now: float) -> str:
        """Forget those that serve what is wanted of them, are not wanted any more, or are too late.

        tasks: all that are wanted. Returns why the last late one was, or ""."""
        why = ""
        for key in self._ways.keys() - {task.key for task in tasks}:
            del self._ways[key]
        for task in tasks:
            way = self._ways.get(task.key)
            if way is None:
                continue
            self._note(way, task, wanted(task.key), now)
            gone = way.away is not None and (bool(task.job.over) or now - way.away > self._patience)
            serves = task.serves(wanted(task.key))
            if not task.alive and task.job.taken:  # as one that was away before: it changes when it is back
                del self._ways[task.key]
                continue
            if not (serves or gone or now > way.due):
                continue
            del self._ways[task.key]
            if way.seen and not serves:  # otherwise it was away before this broker came, as a task may be
                self.late.add(task.key)
                why = self._why(task)
        return why

    @property
    def _patience(self) -> float:
        """Nodes and file systems under load start agents slowly: the others tell how slowly."""
        return min(AWAY_SECONDS, max(LEAST_AWAY, SLOWER * self.slowest)) if self.slowest else FIRST_AWAY

    def _note(self, way: _Way, task: Task, version: str, now: float) -> None:
        if task.alive and way.away is not None and way.seen:
            self.slowest = max(self.slowest, now - way.away)
        way.seen |= task.alive
        way.away = None if task.alive else now if way.away is None else way.away
        if task.alive and task.version == version and not way.up:
            way.up, way.due = True, now + self._seconds

    def _why(self, task: Task) -> str:
        if not task.alive:
            waited = f"{self._patience:.0f} s after its agent ended"
            return f"{task.key} was not back {waited}" if not task.job.over else f"{task.key}: {task.job.over}"
        story = next((f" ({replica.story})" for replica in task.replicas if replica.story), "")
        return f"{task.key} was not ready within rollout.seconds = {self._seconds:g}{story}"
