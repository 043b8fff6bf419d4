"""The files of one batch as the broker's loop sees them: what threads write, read, or cannot write for now."""

from __future__ import annotations

import logging
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field

from exahpc.batch.commits import AnyEvent
from exahpc.batch.opened import Opened, close_late, finish, load
from exahpc.batch.plan import Parts
from exahpc.batch.salvage import Found, Owners, look
from exahpc.batch.space import BY_ITSELF, refusal

log = logging.getLogger(__name__)

_AGAIN_SECONDS = 2.0


@dataclass(frozen=True)
class _Flush:
    """Events on their way to the disk; ok, failed: rows that are done when they are there."""

    events: list[AnyEvent]
    ok: int
    failed: int
    done: Future[None]


@dataclass(frozen=True)
class _Hold:
    """There is no room for what is to be written. again: when to try."""

    why: str
    again: float


@dataclass
class BatchFiles:
    """loaded: None until the batch is open; events: to be written; unsought: agents whose journals are to be
    looked through, all at once.

    Nothing is given up that could not be written: it stays due, in order, and is tried again after a while.
    """

    batch: str
    parts: Parts
    epoch: int
    loaded: Opened | None = None
    events: list[AnyEvent] = field(default_factory=list)
    unsought: set[str] = field(default_factory=set)
    _loading: Future[Opened] | None = None
    _flushing: _Flush | None = None
    _seeking: tuple[set[str], Future[dict[str, list[Found]]]] | None = None
    _hold: _Hold | None = None

    @property
    def held(self) -> str:
        """Why nothing can be written now; "" while it can."""
        return self._hold.why if self._hold is not None else ""

    @property
    def written(self) -> bool:
        """Whether all that was decided is on disk."""
        return not self.events and self._flushing is None

    def begin(self, pool: Executor, now: float) -> None:
        """What is due, in threads."""
        if self._hold is not None and now < self._hold.again:
            return
        if self.loaded is None:
            if self._loading is None:
                self._loading = pool.submit(load, self.parts, self.batch, self.epoch)
            return
        if self.events and self._flushing is None:
            events, self.events = self.events, []
            book, done = self.loaded.book, pool.submit(self.loaded.write, events, self.loaded.due())
            self._flushing = _Flush(events, book.ok, book.failed, done)
        if self.unsought and self._seeking is None:
            agents, self.unsought = self.unsought, set()
            owners, committed = Owners(agents), self.loaded.committed
            known = {name: committed.gaps(name) for name in committed.bytes if owners.of(name)}
            self._seeking = agents, pool.submit(look, self.parts, self.batch, owners, known)

    def opened(self) -> Opened | None:
        """What opening it came to, once. Raises what that raised."""
        if self._loading is None or not self._loading.done():
            return None
        loading, self._loading = self._loading, None
        self.loaded = loading.result()
        self._go_on()
        return self.loaded

    def flushed(self) -> tuple[int, int] | None:
        """(ok, failed) rows that are done on disk now, after each flush. Raises what that raised."""
        if self._flushing is None or not self._flushing.done.done():
            return None
        flushing, self._flushing = self._flushing, None
        try:
            flushing.done.result()
        except OSError:
            self.events = flushing.events + self.events
            raise
        self._go_on()
        return flushing.ok, flushing.failed

    def sought(self) -> dict[str, list[Found]] | None:
        """What was found in the journals of each agent that was to be looked for. Raises what looking raised."""
        if self._seeking is None or not self._seeking[1].done():
            return None
        (agents, seeking), self._seeking = self._seeking, None
        try:
            found = seeking.result()
        except OSError:
            self.unsought |= agents
            raise
        # those asked for again meanwhile: only a newer look may end their leases
        return {agent: found.get(agent, []) for agent in agents - self.unsought}

    def hold(self, error: Exception, now: float) -> None:
        """There is no room: wait a while."""
        told = refusal(error, self.parts.path, BY_ITSELF) if isinstance(error, OSError) else error
        if self._hold is None:
            log.error("batch %s is held, no rows of it are begun: %s", self.batch, told)
        self._hold = _Hold(str(told), now + _AGAIN_SECONDS)

    def _go_on(self) -> None:
        if self._hold is not None:
            log.warning("batch %s goes on: there is room again", self.batch)
            self._hold = None

    def end(self, pool: Executor, *, last: bool) -> None:
        """Let go of them, in threads. last: with the events that are still to be written."""
        if self._loading is not None:
            self._loading.add_done_callback(close_late)
        if self.loaded is not None:
            before = self._flushing.done if self._flushing is not None else None
            pool.submit(finish, self.loaded.writer, self.events if last else [], before)
        self.loaded = self._loading = self._flushing = self._seeking = self._hold = None
        self.events, self.unsought = [], set()
