"""The broker's batches: performs what `leases` decides. Files are touched only by worker threads, but for `close`.

Call from one thread (the loop). Nothing here waits for a disk: opening, salvage and commits run in threads, and
their results are taken in by the next call. That a commit is durable a moment after it was decided is safe: the
rows it names lie fsynced in an agent's journal, where the next broker finds them.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import assert_never

import msgspec

from exahpc.batch import usage
from exahpc.batch.commits import Commit
from exahpc.batch.intervals import count
from exahpc.batch.opened import Opened
from exahpc.batch.plan import Parts
from exahpc.batch.space import is_full, refusal
from exahpc.broker.batch_files import BatchFiles
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
_AGAIN_SECONDS = 2.0
_BELIEVED_SECONDS = 15.0
"""Longer than an agent is silent about a full disk."""


@dataclass
class _Batch:
    """One batch. status: counts in it are durable (a number shown is a row that survives anything); agents: why
    one of them cannot write, and until when that is believed; early: what agents reported before it was open."""

    files: BatchFiles
    status: BatchStatus
    tally: Tally | None = None
    agents: tuple[str, float] = "", 0.0
    early: list[tuple[str, LeaseProgress]] = field(default_factory=list)

    @property
    def live(self) -> bool:
        return self.status.state in ("opening", "running")


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
        self._hellos: dict[str, frozenset[int]] = {}
        self._unnoted, self._note_at = False, 0.0
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
        elif isinstance(message, BatchCancel) and entry.live:
            self._end(message.batch, entry, "cancelled")
        return BatchState(self._status(message.batch, entry))

    def work(self) -> Work:
        """What is to be done still, in all batches."""
        books = [book for batch in self._batches if (book := self._leases.book(batch)) is not None]
        return Work(
            sum(book.rows - book.ok - book.failed for book in books),
            sum(book.waiting for book in books),
            self._opening() or any(entry.files.held for entry in self._batches.values()),
            frozenset[str]().union(*(book.agents for book in books)),
        )

    def status(self) -> list[BatchStatus]:
        return [self._status(batch, entry) for batch, entry in self._batches.items()]

    def _status(self, batch: str, entry: _Batch) -> BatchStatus:
        book, status = self._leases.book(batch), entry.status
        if entry.live:
            status = msgspec.structs.replace(status, note=entry.files.held or entry.agents[0])
        if book is None:
            return status
        status = msgspec.structs.replace(status, leased=book.leased)
        return entry.tally.told(status) if entry.tally is not None else status

    # --- agents ---

    def want(self, agent: str, rows: int, epoch: int, now: float) -> list[LeaseGrant]:
        self._perform(self._leases.want(agent, rows, now), now)
        grants, self._grants = self._grants, []
        return [msgspec.structs.replace(grant, epoch=epoch) for grant in grants]

    def progress(self, agent: str, message: LeaseProgress, now: float) -> list[LeaseRevoke]:
        """Revokes to send to this agent."""
        entry = self._batches.get(message.batch)
        if message.held and entry is not None:
            entry.agents = f"{agent}: {message.held}", now + _BELIEVED_SECONDS
        if entry is not None and entry.status.state == "opening":
            entry.early.append((agent, message))
        else:
            self._report(agent, message, now)
        return self._for(agent)

    def hello(self, agent: str, leases: Iterable[int], now: float) -> list[LeaseRevoke]:
        """An agent (re)connected with these leases in hand. Revokes to send to it."""
        named = frozenset(leases)
        if self._opening():
            self._hellos[agent] = named  # some may be of a batch whose leases are not known yet
            self._perform(self._leases.known(agent, named), now)
        else:
            self._perform(self._leases.hello(agent, named, now), now)
        return self._for(agent)

    def agent_lost(self, agent: str, now: float, *, orderly: bool = False) -> None:
        """orderly: it was told to end; its rows have no part in that."""
        self._hellos.pop(agent, None)
        for entry in self._batches.values():  # found in its journals, when its leases are taken back
            entry.early = [(other, message) for other, message in entry.early if other != agent]
        self._perform(self._leases.agent_lost(agent, now, orderly=orderly), now)

    def tick(self, now: float) -> list[tuple[str, LeaseRevoke]]:
        """Call several times a second. Takes in what threads finished and starts what is due; (agent, message)
        pairs to send."""
        for batch, entry in list(self._batches.items()):
            try:
                self._collect(batch, entry, now)
            except Exception as error:  # a full disk, a spoilt folder, a defect: one batch must not end the broker
                if is_full(error):
                    entry.files.hold(error, now)
                else:
                    log.error("batch %s failed: %s", batch, error, exc_info=not isinstance(error, BatchError))
                    told = refusal(error, entry.files.parts.path) if isinstance(error, OSError) else error
                    self._end(batch, entry, "failed", str(told) or type(error).__name__)
            if self._leases.book(batch) is not None:
                self._leases.hold(batch, bool(entry.files.held))
        if self._hellos and not self._opening():
            for agent, leases in self._hellos.items():
                self._perform(self._leases.strangers(agent, leases), now)
            self._hellos.clear()
        self._perform(self._leases.tick(now), now)
        if self._unnoted and now >= self._note_at:
            self._note_at = now + _AGAIN_SECONDS
            self._remember()
        for entry in self._batches.values():
            if entry.live:
                entry.files.begin(self._pool, now)
            if now >= entry.agents[1]:
                entry.agents = "", now
            if entry.tally is not None and entry.files.loaded is not None:
                entry.tally.account(self.account)
                if entry.tally.due(now):
                    self._note(entry, entry.files.loaded)
        revokes, self._revokes = self._revokes, []
        return revokes

    def close(self) -> None:
        """Stop the threads; what was not committed yet is found in the journals by the next broker."""
        for entry in self._batches.values():
            if entry.files.loaded is not None and entry.tally is not None:
                with contextlib.suppress(OSError):  # results do not depend on it
                    number = entry.files.loaded.writer.number
                    usage.note(entry.files.parts, number, entry.tally.account(self.account))
        self._pool.shutdown(wait=False, cancel_futures=True)

    # --- inside ---

    def _opening(self) -> bool:
        return any(entry.status.state == "opening" for entry in self._batches.values())

    def _for(self, agent: str) -> list[LeaseRevoke]:
        own = [message for to, message in self._revokes if to == agent]
        self._revokes = [(to, message) for to, message in self._revokes if to != agent]
        return own

    def _report(self, agent: str, message: LeaseProgress, now: float) -> None:
        actions = self._leases.progress(agent, message, now)
        committed = any(isinstance(action, Log) and isinstance(action.event, Commit) for action in actions)
        if committed and (tally := self._batches[message.batch].tally) is not None:
            tally.add(message)
        self._perform(actions, now)

    def _perform(self, actions: list[Action], now: float) -> None:
        for action in actions:
            match action:
                case Log(batch, event):
                    files = self._batches[batch].files
                    files.events.append(event)
                    if files.loaded is not None:
                        files.loaded.committed.note(event)
                case Grant(_, batch, lease, first, last, alone, given_up):
                    folder = str(self._batches[batch].files.parts.path)
                    grant = LeaseGrant(self._epoch, lease, batch, folder, first, last, alone, given_up)
                    self._grants.append(grant)
                case Revoke(agent, lease, soft):
                    self._revokes.append((agent, LeaseRevoke(self._epoch, lease, soft)))
                case Salvage(agent, batch):
                    self._batches[batch].files.unsought.add(agent)
                case _:
                    assert_never(action)

    def _collect(self, batch: str, entry: _Batch, now: float) -> None:
        """Take in what threads finished. Raises what they raised."""
        files = entry.files
        if (loaded := files.opened()) is not None:
            book = loaded.book
            counts = book.rows, book.ok, book.failed, 0
            entry.status = BatchStatus(batch, entry.status.folder, *counts, "running", skipped=count(book.bad))
            entry.tally = Tally(loaded.node_hours, self.account)
            self._leases.open(batch, book, loaded.writer.number, now)
            for agent, leases in self._hellos.items():
                self._perform(self._leases.named(agent, leases, batch), now)
            self._perform(self._leases.salvaged("", batch, loaded.found, now), now)
            loaded.found = []
            early, entry.early = entry.early, []
            for agent, message in early:
                self._report(agent, message, now)
        if (done := files.flushed()) is not None:
            entry.status = msgspec.structs.replace(entry.status, ok=done[0], failed=done[1])
        for agent, found in (files.sought() or {}).items():
            self._perform(self._leases.salvaged(agent, batch, found, now), now)
        book_now = self._leases.book(batch)
        if book_now is not None and book_now.done and files.written:
            self._end(batch, entry, "finished")

    def _open(self, batch: str, folder: str) -> _Batch:
        parts = Parts(Path(folder))
        for old, entry in list(self._batches.items()):
            if old != batch and entry.files.parts.path == parts.path and entry.live:
                self._end(old, entry, "failed", "its folder was removed and holds another batch now")
        files = BatchFiles(batch, parts, self._epoch)
        entry = _Batch(files, BatchStatus(batch, folder, 0, 0, 0, 0, "opening"))
        files.begin(self._pool, 0.0)
        self._batches[batch] = entry
        return entry

    def _end(self, batch: str, entry: _Batch, state: str, note: str = "") -> None:
        if entry.tally is not None:
            entry.tally.account(self.account)
        entry.status = msgspec.structs.replace(self._status(batch, entry), state=state, note=note, leased=0)
        if self._leases.book(batch) is not None:
            self._perform(self._leases.close(batch, 0.0), 0.0)
        if entry.files.loaded is not None:
            self._note(entry, entry.files.loaded)
        entry.early = []
        entry.files.end(self._pool, last=state == "cancelled")
        self._remember()
        ended = [b for b, e in self._batches.items() if not e.live]
        for old in ended[:-_KEPT]:
            del self._batches[old]

    def _note(self, entry: _Batch, loaded: Opened) -> None:
        """Its node-hours. Results do not depend on them: what comes of it is not waited for."""
        if entry.tally is not None:
            self._pool.submit(usage.note, entry.files.parts, loaded.writer.number, entry.tally.used)

    def _remember(self) -> None:
        live = {b: str(e.files.parts.path) for b, e in self._batches.items() if e.live}
        try:
            write_atomic(self._register, msgspec.json.encode(live), durable=True)
            self._unnoted = False
        except OSError as error:  # a client opens its batch again; only one without would wait for ever
            if not self._unnoted:
                log.error("%s is written later: %s", self._register, error)
            self._unnoted = True
