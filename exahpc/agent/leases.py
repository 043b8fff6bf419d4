"""The agent's share of batches: leases in, rows to run out, ended rows into the journal, ranges to the broker.

All state is the event loop's; files are touched only inside `sync`, in a thread, so that a slow file system never
holds up a stream. A row counts as ended when `sync` has made its record durable.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from exahpc.agent.actions import Served
from exahpc.batch.intervals import count, ranges_of
from exahpc.batch.journal import Record, Run, error_body
from exahpc.batch.reasons import Reasons, reason_of
from exahpc.batch.station import Load, Stations, Task, Where, Write
from exahpc.wire.messages import LeaseGrant, LeaseProgress

log = logging.getLogger(__name__)

SUSPECT = 2
"""A row whose replica died by itself so often runs alone. If that one dies too, it becomes an error record."""
ATTEMPTS = 10
"""A row that was begun so often becomes an error record, whatever ended its attempts."""
HELD_SECONDS = 10.0
"""How often the broker is told that nothing can be written: rows that make no progress would be taken back."""
_LOAD_BYTES = 16 * 2**20
_ANSWER_SECONDS = 1.0
_BACKOFF_SECONDS = 10.0


@dataclass(frozen=True)
class Row:
    """One row to run: key names it in `ended` and `lost`; kind: "chat" or "completion"; alone: nothing may run
    beside it."""

    key: str
    kind: str
    body: bytes
    seed: int
    alone: bool = False


@dataclass
class _Lease:
    """next: first row not loaded yet; suspects: rows that must run alone; writing: records that `sync` is making
    durable; lost: row -> (attempts, own exits); back: rows to hand back; soft: nothing more is begun; dead:
    revoked; unread: why its rows could not be read, to be told."""

    grant: LeaseGrant
    next: int
    loaded: deque[Task] = field(default_factory=deque)
    suspects: deque[Task] = field(default_factory=deque)
    running: dict[int, Task] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    writing: list[Record] = field(default_factory=list)
    lost: dict[int, tuple[int, int]] = field(default_factory=dict)
    back: list[int] = field(default_factory=list)
    soft: bool = False
    dead: bool = False
    unread: str = ""

    @property
    def where(self) -> Where:
        return self.grant.folder, self.grant.batch

    @property
    def waiting(self) -> int:
        return len(self.loaded) + self.grant.last - self.next

    @property
    def over(self) -> bool:
        return self.dead or not (self.waiting or self.suspects or self.running or self.records or self.writing)

    def hand_back(self) -> None:
        self.back += [task.row for task in (*self.loaded, *self.suspects)] + list(
            range(self.next, self.grant.last)
        )
        self.loaded.clear()
        self.suspects.clear()
        self.next = self.grant.last


class LeaseWorker:
    """name: "<pool>-<task>", and how the agent's journal files begin; node, version: of its replicas, for the
    records; wall: Unix seconds."""

    def __init__(
        self,
        name: str,
        clock: Callable[[], float] = time.monotonic,
        *,
        node: str = "",
        version: str = "",
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._name, self._clock, self._node, self._version, self._wall = name, clock, node, version, wall
        self._dealt: dict[str, float] = {}  # when the rows that run were taken, by key
        self._leases: dict[int, _Lease] = {}
        self._stations = Stations(name, clock)
        self._lock = asyncio.Lock()
        self._ask_again = 0.0
        self._blocked: dict[Where, str] = {}  # where nothing can be written for now, and why
        self._held_at = 0.0
        self._alone: str | None = None  # key of the row that runs alone: one at a time

    @property
    def leases(self) -> list[int]:
        """Leases in hand, for AgentHello."""
        return [number for number, lease in self._leases.items() if not lease.dead]

    @property
    def busy(self) -> bool:
        """Whether any lease is in hand."""
        return bool(self._leases)

    def grant(self, message: LeaseGrant) -> None:
        self._ask_again = 0.0
        if message.lease not in self._leases:
            self._leases[message.lease] = _Lease(message, message.first)

    def revoke(self, lease: int, soft: bool = False) -> list[str]:
        """Stop working on a lease; returns the keys of rows that need not run any more, of which nothing is to be
        told. soft: only hand back the rows that were not begun; the others go on."""
        found = self._leases.get(lease)
        if found is None:
            return []
        needless: list[str] = []
        if not soft:
            needless = [f"{lease}.{row}" for row in found.running]
            found.dead = True
            found.running.clear()
            found.records.clear()
        found.soft = True
        found.hand_back()
        for key in needless:
            self._dealt.pop(key, None)
            if key == self._alone:
                self._alone = None
        return needless

    def drain(self) -> None:
        """Hand back everything that was not begun."""
        for lease in list(self._leases):
            self.revoke(lease, soft=True)

    def wanted(self, free_sequences: int) -> int:
        """Rows to ask the broker for now: 0 while an answer is due, or enough is in hand.

        free_sequences: sequences that replicas could take at once. About half of all running ones is held ready.
        """
        now = self._clock()
        if self._blocked or now < self._ask_again:
            return 0
        running = sum(len(lease.running) for lease in self._leases.values())
        waiting = sum(lease.waiting for lease in self._leases.values())
        target = free_sequences + (running + free_sequences + 1) // 2
        if 2 * waiting >= target:
            return 0
        self._ask_again = now + _ANSWER_SECONDS
        return target - waiting

    def next_rows(self, n: int) -> list[Row]:
        """Up to n rows to begin. Empty until a `sync` after the grant has read them."""
        if n and self._alone is None and (suspect := self._next_suspect()) is not None:
            return [suspect]
        rows: list[Row] = []
        for number, lease in self._leases.items():
            while lease.loaded and len(rows) < n and lease.where not in self._blocked:
                task = lease.loaded.popleft()
                lease.running[task.row] = task
                rows.append(Row(f"{number}.{task.row}", task.kind, task.body, task.seed))
        if rows:
            self._dealt.update(dict.fromkeys((row.key for row in rows), self._wall()))
        return rows

    def _next_suspect(self) -> Row | None:
        for number, lease in self._leases.items():
            if lease.suspects and lease.where not in self._blocked:
                task = lease.suspects.popleft()
                lease.running[task.row] = task
                self._alone = f"{number}.{task.row}"
                self._dealt[self._alone] = self._wall()
                return Row(self._alone, task.kind, task.body, task.seed, alone=True)
        return None

    def _pop(self, key: str) -> tuple[_Lease, Task] | None:
        if key == self._alone:
            self._alone = None
        number, _, row = key.partition(".")
        lease = self._leases.get(int(number))
        task = lease.running.pop(int(row), None) if lease else None
        return (lease, task) if lease and task else None

    def ended(
        self,
        key: str,
        status: int,
        body: bytes,
        prompt_tokens: int,
        completion_tokens: int,
        served: Served | None = None,
    ) -> None:
        """A row has its answer (status 200) or its error body. Rows of revoked leases are ignored.

        served: by which replica, with times in Unix seconds.
        """
        now = self._wall()
        queued = self._dealt.pop(key, now)
        if found := self._pop(key):
            lease, task = found
            run = None if served is None else self._run(served, queued, now)
            self._record(
                lease, task.row, task.line, task.custom_id, status, body, prompt_tokens, completion_tokens, run=run
            )

    def _run(self, served: Served, queued: float, ended: float) -> Run:
        return Run(
            served.slot, served.incarnation, self._node, self._version, queued, served.started, served.first_token,
            ended, served.cached_tokens, served.token_ids,
        )  # fmt: skip

    def lost(self, key: str, own_exit: bool) -> None:
        """The row's replica is gone: begin it again, a bounded number of times."""
        alone = key == self._alone
        self._dealt.pop(key, None)
        if not (found := self._pop(key)):
            return
        lease, task = found
        attempts, exits = lease.lost.get(task.row, (0, 0))
        attempts, exits = attempts + 1, exits + own_exit
        lease.lost[task.row] = attempts, exits
        if (alone and own_exit) or attempts >= ATTEMPTS:
            reason = (
                f"given up after {attempts} attempts: the replica ended under this row, {exits} times by itself"
            )
            if alone and own_exit:
                reason += ", the last time while nothing else ran there"
            self._give_up(lease, task, reason)
        elif lease.soft:
            lease.back.append(task.row)
        elif exits >= SUSPECT or lease.grant.alone:
            lease.suspects.append(task)
        else:
            lease.loaded.appendleft(task)

    def _give_up(self, lease: _Lease, task: Task, reason: str) -> None:
        body = error_body(reason, code="replica_lost")
        self._record(lease, task.row, task.line, task.custom_id, 500, body, 0, 0)

    def _record(
        self,
        lease: _Lease,
        row: int,
        line: int,
        custom_id: bytes | None,
        status: int,
        body: bytes,
        *tokens: int,
        run: Run | None = None,
    ) -> None:
        grant = lease.grant
        lease.records.append(
            Record(
                row, line, status, custom_id, body, tokens[0], tokens[1], grant.lease, grant.epoch, self._name, run
            )
        )

    # --- files ---

    async def sync(self) -> list[LeaseProgress]:
        """Make ended rows durable and read the next ones. Returns what to tell the broker. Call often."""
        async with self._lock:
            writes, loads = self._due_writes(), self._due_loads()
            in_use = {lease.where for lease in self._leases.values()}
            if writes or loads or self._stations.idle(in_use):
                await asyncio.to_thread(self._stations.perform, writes, loads, in_use)
            for load in loads:
                self._loaded(load)
            return self._report(self._written(writes))

    def _due_writes(self) -> list[Write]:
        writes: dict[Where, Write] = {}
        for number, lease in self._leases.items():
            if lease.records:
                writes.setdefault(lease.where, Write(lease.where)).records[number] = lease.records
                lease.writing, lease.records = lease.records, []
        return list(writes.values())

    def _due_loads(self) -> list[Load]:
        left = _LOAD_BYTES - sum(len(task.body) for lease in self._leases.values() for task in lease.loaded)
        due = [lease for lease in self._leases.values() if lease.next < lease.grant.last]
        if left <= 0 or not due:
            return []
        share = left // len(due)
        return [Load(le.grant.lease, le.where, le.next, le.grant.last, share) for le in due]

    def _written(self, writes: list[Write]) -> dict[int, tuple[str, int, int]]:
        for write in writes:
            if write.error and write.where not in self._blocked:
                log.error("results cannot be kept in %s, no more rows are begun: %s", write.where[0], write.error)
            elif write.where in self._blocked and not write.error:
                log.warning("results are kept in %s again", write.where[0])
        self._blocked = {write.where: write.error for write in writes if write.error}
        return {lease: place for write in writes for lease, place in write.places.items()}

    def _loaded(self, load: Load) -> None:
        lease = self._leases[load.lease]
        if lease.next != load.first:  # handed back meanwhile
            return
        if load.error:
            log.warning("rows of %s cannot be read, handing them back: %s", load.where[0], load.error)
            lease.unread = f"rows of {load.where[0]} cannot be read there: {load.error}"
            self.revoke(load.lease, soft=True)
            self._ask_again = self._clock() + _BACKOFF_SECONDS
            return
        lease.next = load.after
        for row in load.rows:
            if isinstance(row, Task):
                if lease.grant.given_up:
                    self._give_up(lease, row, lease.grant.given_up)
                else:
                    (lease.suspects if lease.grant.alone else lease.loaded).append(row)
            else:
                body = error_body(row.reason, code="input_changed")
                self._record(lease, row.row, row.line, None, 500, body, 0, 0)

    def _report(self, places: dict[int, tuple[str, int, int]]) -> list[LeaseProgress]:
        messages = []
        say_held = bool(self._blocked) and self._clock() >= self._held_at
        if say_held:
            self._held_at = self._clock() + HELD_SECONDS
        for number, lease in list(self._leases.items()):
            written, lease.writing = lease.writing, []
            suspect = ranges_of(row for row in lease.back if lease.lost.get(row, (0, 0))[1])
            back, lease.back = ranges_of(lease.back), []
            if number not in places:
                lease.records = written + lease.records
                written = []
            if lease.dead:
                lease.records = written = []
            if lease.over:
                del self._leases[number]
            held = lease.unread or (self._blocked.get(lease.where, "") if say_held else "")
            lease.unread = ""
            if written or back or lease.over or held:
                good = ranges_of(record.row for record in written if record.status == 200)
                bad = ranges_of(record.row for record in written if record.status != 200)
                counts = *(places[number] if written else ("", 0, 0)), count(good), count(bad)
                told = LeaseProgress(
                    number, lease.grant.batch, *counts, lease.over, good, bad, back, suspect, held=held
                )
                messages.append(_summed(told, written))
        return messages


def _summed(message: LeaseProgress, written: Sequence[Record]) -> LeaseProgress:
    """What a watching user is told of these rows."""
    if not written:
        return message
    reasons = Reasons()
    for record in written:
        if record.status != 200:
            reasons.add(reason_of(record.body, record.status))
    return msgspec.structs.replace(
        message,
        prompt_tokens=sum(record.prompt_tokens for record in written),
        completion_tokens=sum(record.completion_tokens for record in written),
        errors=reasons.most(4),
    )
