"""The broker's hands in a simulation: its real loops around Slurm (`broker.rebuilder`, `broker.successors`), whose
waits pass by the virtual clock, with the simulated Slurm and a journal in memory."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterable
from typing import Any, Generic, TypeVar

from exahpc.broker.memory import AnyRecord, Memory
from exahpc.broker.recovery import Act
from exahpc.lab.simulate.cluster import Cluster
from exahpc.lab.simulate.timeline import Timeline
from exahpc.slurm.api import JobRecord

T = TypeVar("T")

ASK, DEED = 0.3, 1.0
"""Seconds that Slurm takes to answer, and to do something."""


class Pause(Generic[T]):
    """`await` it: so many seconds pass, then it gives what `work` does."""

    def __init__(self, seconds: float, work: Callable[[], T]) -> None:
        self.seconds, self.work = seconds, work

    def __await__(self) -> Generator[Pause[T], T, T]:
        given: T = yield self
        return given


class Virtual:
    """Runs coroutines that wait for `Pause` and nothing else, until it is ended."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._ended = False

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._go(work, None)

    def end(self) -> None:
        """What is under way goes no further."""
        self._ended = True

    def _go(self, work: Coroutine[Any, Any, None], value: Any) -> None:
        try:
            pause = work.send(value)
        except StopIteration:
            return
        self._timeline.after(pause.seconds, self._resume, work, pause)

    def _resume(self, work: Coroutine[Any, Any, None], pause: Pause[Any]) -> None:
        if self._ended:
            work.close()
        else:
            self._go(work, pause.work())


class Notebook:
    """As `broker.journal.Journal`."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def append(self, record: AnyRecord) -> None:
        self._memory.apply(record)

    async def durable(self, record: AnyRecord) -> None:
        self._memory.apply(record)


class Slurm:
    """As `broker.cluster.Cluster`, on the simulated one. deeds: (when, what, task) of all that was asked."""

    def __init__(self, timeline: Timeline, cluster: Cluster) -> None:
        self._timeline, self._cluster = timeline, cluster
        self._arrays: dict[str, list[str]] = {}
        self.deeds: list[tuple[float, str, str]] = []

    def begun(self, pool: str, array: str) -> None:
        """An array that `up` submitted."""
        self._arrays.setdefault(pool, []).append(array)

    async def query(
        self, arrays: Iterable[str] = (), *, search: bool = False
    ) -> tuple[dict[str, list[str]], dict[str, JobRecord]]:
        found: tuple[dict[str, list[str]], dict[str, JobRecord]]
        found = await Pause(ASK, lambda: (self._arrays, self._cluster.records()))
        return found

    async def perform(self, act: Act) -> str:
        job: str = await Pause(DEED, lambda: self._do(act))
        return job

    async def adopt(self, pool: str, array: str) -> None:
        """All that is asked here is known."""

    def _do(self, act: Act) -> str:
        self.deeds.append((self._timeline.now, act.kind, act.key))
        pool, _, task = act.key.rpartition("/")
        match act.kind:
            case "requeue":
                self._cluster.requeue(self._cluster.jobs[act.job], act.exclude)
            case "cancel":
                self._cluster.cancel(self._cluster.jobs[act.job])
            case "resubmit":
                return self._cluster.submit(pool, int(task), act.exclude)
        return act.job
