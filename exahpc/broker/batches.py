"""The broker's batches: performs what `leases` decides. Files are touched only by worker threads, but for `close`.

Call from one thread (the loop). Nothing here waits for a disk: opening, salvage and commits run in threads, and
their results are taken in by the next call. That a commit is durable a moment after it was decided is safe: the
rows it names lie fsynced in an agent's journal, where the next broker finds them.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import assert_never

import msgspec

from exahpc.batch import usage
from exahpc.batch.commits import AnyEvent, Commit
from exahpc.batch.intervals import count
from exahpc.batch.opened import Opened, close_late, finish, load
from exahpc.batch.plan import Parts
from exahpc.batch.salvage import Committed, Found, Owners, look
from exahpc.batch.space import refusal
from exahpc.broker.lease_actions import Action, Grant, Log, Revoke, Salvage
from exahpc.broker.leases import Leases
from exahpc.broker.release import Work
from exahpc.broker.tally import Tally
from exahpc.errors import BatchError
from exahpc.wire.folder import write_atomic
from exahpc.wire.messages import (
    BatchCancel,
    BatchOpen,
    BatchQuery,
    BatchState,
    BatchStatus,
    LeaseGrant,
    LeaseProgress,
    LeaseRevoke,
    Refused,
)

log = logging.getLogger(__name__)

_THREADS = 4
_KEPT = 64  # ended batches remembered for queries


@dataclass
class _Batch:
    """One batch. status: counts in it are durable (a number shown is a row that survives anything); going: the
    (ok, failed) that `flushing` makes durable; unsought: agents whose journals are to be looked through, all at
    once, when `seeking`, the look under way, has ended."""

    parts: Parts
    status: BatchStatus
    loading: Future[Opened] | None = None
    loaded: Opened | None = None
    events: list[AnyEvent] = field(default_factory=list)
    flushing: Future[None] | None = None
    going: tuple[int, int] = (0, 0)
    unsought: set[str] = field(default_factory=set)
    seeking: tuple[set[str], Future[dict[str, list[Found]]]] | None = None
    tally: Tally | None = None


class Batches:
    """folder: the deployment's (open batches are remembered there for the next broker); epoch: the broker's;
    account: node-hours that the deployment has used, over all brokers. Whoever counts them keeps it up to date."""

    def __init__(self, folder: Path, epoch: int, account: float = 0.0) -> None:
        self._register, self._epoch = folder / "batches.json", epoch
        self._leases = Leases(epoch)
        self._batches: dict[str, _Batch] = {}
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="batches")
        self._grants: list[LeaseGrant] = []
        self._revokes: list[tuple[str, LeaseRevoke]] = []
        self._hellos: dict[str, tuple[int, ...]] = {}
        self.account = account
        try:
            before = msgspec.json.decode(self._register.read_bytes(), type=dict[str, str])
        except (FileNotFoundError, msgspec.MsgspecError):
            before = {}
        for batch, path in before.items():
            self._open(batch, path)

    # --- clients ---

    def handle_client(self, message: BatchOpen | BatchQuery | BatchCancel) -> BatchState | Refused:
        entry = self._batches.get(message.batch)
        if isinstance(message, BatchOpen):
            if entry is None or entry.status.state in ("failed", "cancelled"):
                if not Path(message.folder).is_absolute():
                    return Refused(
                        f"batch folder {message.folder!r} must be an absolute path that all nodes reach"
                    )
                entry = self._open(message.batch, message.folder)
                self._remember()
        elif entry is None:
            return Refused(f"unknown batch {message.batch}: open it with `exahpc batch run`")
        elif isinstance(message, BatchCancel) and entry.status.state in ("opening", "running"):
            self._end(message.batch, entry, "cancelled")
        return BatchState(self._status(message.batch, entry))

    def work(self) -> Work:
        """What is to be done still, in all batches."""
        books = [book for batch in self._batches if (book := self._leases.book(batch)) is not None]
        return Work(
            sum(book.rows - book.ok - book.failed for book in books),
            sum(book.waiting for book in books),
            self._opening(),
            frozenset[str]().union(*(book.agents for book in books)),
        )

    def status(self) -> list[BatchStatus]:
        return [self._status(batch, entry) for batch, entry in self._batches.items()]

    def _status(self, batch: str, entry: _Batch) -> BatchStatus:
        book = self._leases.book(batch)
        if book is None:
            return entry.status
        status = msgspec.structs.replace(entry.status, leased=book.leased)
        return entry.tally.told(status) if entry.tally is not None else status

    # --- agents ---

    def want(self, agent: str, rows: int, epoch: int, now: float) -> list[LeaseGrant]:
        self._perform(self._leases.want(agent, rows, now), now)
        grants, self._grants = self._grants, []
        return [msgspec.structs.replace(grant, epoch=epoch) for grant in grants]

    def progress(self, agent: str, message: LeaseProgress, now: float) -> list[LeaseRevoke]:
        """Revokes to send to this agent."""
        actions = self._leases.progress(agent, message, now)
        committed = any(isinstance(action, Log) and isinstance(action.event, Commit) for action in actions)
        if committed and (tally := self._batches[message.batch].tally) is not None:
            tally.add(message)
        self._perform(actions, now)
        return self._for(agent)

    def hello(self, agent: str, leases: Iterable[int], now: float) -> list[LeaseRevoke]:
        """An agent (re)connected with these leases in hand. Revokes to send to it."""
        if self._opening():
            self._hellos[agent] = tuple(leases)  # whose leases they are is not known yet
            return []
        self._perform(self._leases.hello(agent, leases, now), now)
        return self._for(agent)

    def agent_lost(self, agent: str, now: float, *, orderly: bool = False) -> None:
        """orderly: it was told to end; its rows have no part in that."""
        self._hellos.pop(agent, None)
        self._perform(self._leases.agent_lost(agent, now, orderly=orderly), now)

    def tick(self, now: float) -> list[tuple[str, LeaseRevoke]]:
        """Call several times a second. Takes in what threads finished and starts what is due; (agent, message)
        pairs to send."""
        for batch, entry in list(self._batches.items()):
            try:
                self._collect(batch, entry, now)
            except Exception as error:  # a full disk, a spoilt folder, a defect: one batch must not end the broker
                log.error("batch %s failed: %s", batch, error, exc_info=not isinstance(error, BatchError))
                told = refusal(error, entry.parts.path) if isinstance(error, OSError) else error
                self._end(batch, entry, "failed", str(told) or type(error).__name__)
        if self._hellos and not self._opening():
            for agent, leases in self._hellos.items():
                self._perform(self._leases.hello(agent, leases, now), now)
            self._hellos.clear()
        self._perform(self._leases.tick(now), now)
        for batch, entry in self._batches.items():
            if entry.events and entry.flushing is None and entry.loaded is not None:
                events, entry.events = entry.events, []
                entry.going = entry.loaded.book.ok, entry.loaded.book.failed
                entry.flushing = self._pool.submit(entry.loaded.write, events, entry.loaded.due())
            if entry.unsought and entry.seeking is None and entry.loaded is not None:
                self._seek(batch, entry, entry.loaded.committed)
            if entry.loaded is not None and entry.tally is not None:
                entry.tally.account(self.account)
                if entry.tally.due(now):
                    self._pool.submit(usage.note, entry.parts, entry.loaded.writer.number, entry.tally.used)
        revokes, self._revokes = self._revokes, []
        return revokes

    def close(self) -> None:
        """Stop the threads; what was not committed yet is found in the journals by the next broker."""
        for entry in self._batches.values():
            if entry.loaded is not None and entry.tally is not None:
                with contextlib.suppress(OSError):  # results do not depend on it
                    usage.note(entry.parts, entry.loaded.writer.number, entry.tally.account(self.account))
        self._pool.shutdown(wait=False, cancel_futures=True)

    # --- inside ---

    def _opening(self) -> bool:
        return any(entry.status.state == "opening" for entry in self._batches.values())

    def _for(self, agent: str) -> list[LeaseRevoke]:
        own = [message for to, message in self._revokes if to == agent]
        self._revokes = [(to, message) for to, message in self._revokes if to != agent]
        return own

    def _perform(self, actions: list[Action], now: float) -> None:
        for action in actions:
            match action:
                case Log(batch, event):
                    entry = self._batches[batch]
                    entry.events.append(event)
                    if entry.loaded is not None:
                        entry.loaded.committed.note(event)
                case Grant(_, batch, lease, first, last, alone, given_up):
                    folder = str(self._batches[batch].parts.path)
                    grant = LeaseGrant(self._epoch, lease, batch, folder, first, last, alone, given_up)
                    self._grants.append(grant)
                case Revoke(agent, lease, soft):
                    self._revokes.append((agent, LeaseRevoke(self._epoch, lease, soft)))
                case Salvage(agent, batch):
                    self._batches[batch].unsought.add(agent)
                case _:
                    assert_never(action)

    def _seek(self, batch: str, entry: _Batch, committed: Committed) -> None:
        agents, entry.unsought = entry.unsought, set()
        owners = Owners(agents)
        known = {name: committed.gaps(name) for name in committed.bytes if owners.of(name)}
        entry.seeking = agents, self._pool.submit(look, entry.parts, batch, owners, known)

    def _collect(self, batch: str, entry: _Batch, now: float) -> None:
        """Take in what threads finished. Raises what they raised."""
        if entry.loading is not None and entry.loading.done():
            loading, entry.loading = entry.loading, None
            entry.loaded = loaded = loading.result()
            book = loaded.book
            entry.status = BatchStatus(
                batch, entry.status.folder, book.rows, book.ok, book.failed, 0, "running", skipped=count(book.bad)
            )
            entry.tally = Tally(loaded.node_hours, self.account)
            self._leases.open(batch, loaded.book, loaded.writer.number, now)
            self._perform(self._leases.salvaged("", batch, loaded.found, now), now)
            loaded.found = []
        if entry.flushing is not None and entry.flushing.done():
            flushing, entry.flushing = entry.flushing, None
            flushing.result()
            entry.status = msgspec.structs.replace(entry.status, ok=entry.going[0], failed=entry.going[1])
        if entry.seeking is not None and entry.seeking[1].done():
            (agents, seeking), entry.seeking = entry.seeking, None
            found = seeking.result()
            for agent in agents - entry.unsought:  # asked again meanwhile: only a newer look may end its leases
                self._perform(self._leases.salvaged(agent, batch, found.get(agent, []), now), now)
        open_book = self._leases.book(batch)
        if open_book is not None and open_book.done and not entry.events and entry.flushing is None:
            self._end(batch, entry, "finished")

    def _open(self, batch: str, folder: str) -> _Batch:
        parts = Parts(Path(folder))
        for old, entry in list(self._batches.items()):
            if old != batch and entry.parts.path == parts.path and entry.status.state in ("opening", "running"):
                self._end(old, entry, "failed", "its folder was removed and holds another batch now")
        entry = _Batch(parts, BatchStatus(batch, folder, 0, 0, 0, 0, "opening"))
        entry.loading = self._pool.submit(load, parts, batch, self._epoch)
        self._batches[batch] = entry
        return entry

    def _end(self, batch: str, entry: _Batch, state: str, note: str = "") -> None:
        if entry.tally is not None:
            entry.tally.account(self.account)
        entry.status = msgspec.structs.replace(self._status(batch, entry), state=state, note=note, leased=0)
        if self._leases.book(batch) is not None:
            self._perform(self._leases.close(batch, 0.0), 0.0)
        if entry.loading is not None:
            entry.loading.add_done_callback(close_late)
        if entry.loaded is not None:
            writer, events = entry.loaded.writer, entry.events
            if entry.tally is not None:
                self._pool.submit(usage.note, entry.parts, writer.number, entry.tally.used)
            self._pool.submit(finish, writer, events if state == "cancelled" else [], entry.flushing)
        entry.loading = entry.loaded = entry.flushing = None
        entry.events, entry.unsought, entry.seeking = [], set(), None
        self._remember()
        ended = [b for b, e in self._batches.items() if e.status.state not in ("opening", "running")]
        for old in ended[:-_KEPT]:
            del self._batches[old]

    def _remember(self) -> None:
        live = {b: str(e.parts.path) for b, e in self._batches.items() if e.status.state in ("opening", "running")}
        try:
            write_atomic(self._register, msgspec.json.encode(live), durable=True)
        except OSError as error:  # the client opens its batch again; only a batch without one would wait
            log.error("%s cannot be written: %s", self._register, error)
