"""The ledger: every request of this entry, its attempts, what its client already has, and its one ending. Pure.

    event      waiting   running
    send       running   -          an attempt goes to a replica
    progress   -         running    token ids or text arrived
    busy       -         waiting    the replica had no room; nothing was started
    lost       -         waiting    the attempt ended, the request may live on elsewhere
    end        ended     ended      done, failed, rejected or cancelled: the client has its answer, or is gone

An event that has no cell is a defect and raises StateError with the request's story. A *message* that comes too
late is no event: `accept` and `attempt_of` drop what belongs to an older attempt, another agent or an ended one.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from exahpc.entry.fleet import Agent, Replica
from exahpc.errors import StateError
from exahpc.openai.peeked import Tier
from exahpc.telemetry.meters import EntryMeter
from exahpc.telemetry.stories import NO_TRACE, Trace
from exahpc.wire.messages import Frame, Resume, Submit

Phase = Literal["waiting", "running", "ended"]
Event = Literal["send", "progress", "busy", "lost", "end"]

TRANSITIONS: dict[tuple[Phase, Event], Phase] = {
    ("waiting", "send"): "running",
    ("waiting", "end"): "ended",
    ("running", "progress"): "running",
    ("running", "busy"): "waiting",
    ("running", "lost"): "waiting",
    ("running", "end"): "ended",
}

_STORY = 24  # events kept for an error message


class Choice:
    """What the client of one choice has: token ids, characters sent, and whether it ended."""

    __slots__ = ("finished", "ids", "sent")

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.sent = 0
        self.finished = False


class Record:
    """One request. `client` is the shell's handle of the HTTP exchange; the ledger never looks into it.

    born: when it came; attempt: number of the last attempt (0: none yet); deaths: attempts that ended under the
    request, without those that a replica refused as busy; own_exits: stories of those by the replica's own exit;
    alone: it runs where nothing else does; key: name of the API key; lane, line: where it would wait and where it
    does, see `admission`; started: bytes of the answer came for the client; sequences: those that are not finished
    when an attempt begins; tokens: estimate of what is still to be prefilled and generated; since: when the
    present wait began; progress: when the running attempt last moved, or the client last heard of us; deadline:
    when the client gives up (these four in seconds of the caller's clock); size, version, lot, prefix: see
    `routing.Ask`.
    """

    __slots__ = (
        "_story",
        "allowed",
        "alone",
        "attempt",
        "body",
        "born",
        "choices",
        "client",
        "created",
        "deadline",
        "deaths",
        "id",
        "key",
        "kind",
        "lane",
        "line",
        "lot",
        "out",
        "own_exits",
        "phase",
        "prefix",
        "progress",
        "prompt",
        "replica",
        "seed",
        "sequences",
        "shun",
        "since",
        "size",
        "started",
        "stream",
        "tier",
        "tokens",
        "told",
        "trace",
        "version",
        "why",
    )

    def __init__(
        self,
        id: str,
        kind: Literal["chat", "completion"],
        body: bytes,
        *,
        stream: bool,
        seed: int,
        created: int,
        choices: int,
        prompt: int,
        new: int,
        key: str = "",
        tier: Tier = "default",
        allowed: float = math.inf,
        version: str | None = None,
        prefix: tuple[int, ...] = (),
        trace: Trace = NO_TRACE,
        client: Any = None,
    ) -> None:
        """choices: answers asked for; prompt: estimated prompt tokens; new: most tokens generated, all choices;
        allowed: seconds from now that the client gives us."""
        self.id, self.kind, self.body, self.stream = id, kind, body, stream
        self.seed, self.created, self.client = seed, created, client
        self.key, self.tier = key, tier
        self.choices = [Choice()] if choices == 1 else [Choice() for _ in range(choices)]
        self.prompt, self.tokens = prompt, prompt + new
        self.size = prompt + new // choices
        self.version, self.lot, self.prefix = version, -1, prefix
        self.phase: Phase = "waiting"
        self.attempt = self.deaths = 0
        self.own_exits: tuple[str, ...] = ()
        self.alone = False
        self.lane = ""
        self.line: str | None = None
        self.sequences = choices
        self.replica: Replica | None = None
        self.shun: Replica | None = None
        self.started = False
        self.born = self.since = self.progress = 0.0
        self.allowed = self.deadline = allowed
        self.trace, self.told = trace, trace.wanted
        self.out: list[bytes] = []
        self.why = ""
        self._story: list[tuple[Event, object]] = []

    @property
    def emitted(self) -> bool:
        """Something of the answer is there: only a replica of the same version may go on with it."""
        return self.started or any(choice.ids or choice.finished for choice in self.choices)

    def take(self) -> bytes:
        """The bytes in `out`, which is empty then."""
        out = self.out
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        return data

    def happen(self, event: Event, detail: object = "") -> None:
        """Move along the table. Raises StateError for an event that this phase does not know."""
        phase = TRANSITIONS.get((self.phase, event))
        if phase is None:
            story = "; ".join(f"{event} {detail}".rstrip() for event, detail in self._story)
            raise StateError(
                f"request {self.id} is {self.phase} and cannot {event} ({detail}); its story: {story}"
            )
        if len(self._story) < _STORY:
            self._story.append((event, detail))
        self.phase = phase

    def submit(self, replica: Replica) -> Submit:
        """The message of the attempt that is about to run on `replica`."""
        fresh = self.attempt == 1 or not any(choice.ids or choice.finished for choice in self.choices)
        return Submit(
            self.id,
            self.attempt,
            replica.slot,
            replica.incarnation,
            self.kind,
            self.body,
            self.stream,
            self.seed,
            self.created,
            [] if fresh else [Resume(number, c.ids, c.sent, c.finished) for number, c in enumerate(self.choices)],
            not self.started,
            self.alone,
            self.told,
        )


class Ledger:
    """All requests that have not ended, by id, and counts of those that have."""

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}
        self.stale = 0
        self.measured = EntryMeter()

    def open(self, record: Record, now: float) -> None:
        if record.id in self.records:
            raise StateError(f"request id {record.id} is taken")
        record.born = record.since = record.progress = now
        record.deadline = now + record.allowed
        self.records[record.id] = record

    def send(self, record: Record, replica: Replica, now: float) -> Submit:
        """A new attempt on `replica`."""
        record.happen("send", replica)
        if not record.attempt:
            self.measured.queue.seconds(now - record.born)
        record.attempt += 1
        record.replica, record.progress = replica, now
        return record.submit(replica)

    def attempt_of(self, agent: Agent, request: str, attempt: int) -> Record | None:
        """The record that a message about (request, attempt) from `agent` belongs to; None: it is stale."""
        record = self.records.get(request)
        if (
            record is not None
            and record.attempt == attempt
            and record.replica is not None
            and record.replica.agent is agent
        ):
            return record
        self.stale += 1
        return None

    def accept(self, record: Record, frame: Frame, now: float) -> bool:
        """Take in a frame of the running attempt. False: it does not fit what is known; the attempt is broken.

        A frame that repeats what is known is dropped without a word.
        """
        try:
            choice = record.choices[frame.choice]
        except IndexError:
            return False
        ids = choice.ids
        if frame.index != len(ids) or choice.finished or frame.sent < choice.sent:
            self.stale += 1
            return frame.index + len(frame.ids) <= len(ids)
        if record.phase != "running":
            record.happen("progress")
        ids.extend(frame.ids)
        choice.sent = frame.sent
        if frame.finished:
            choice.finished = True
        record.progress = now
        if frame.data:
            if not record.started:
                record.started = True
                self.measured.ttft.seconds(now - record.born)
            record.out.append(frame.data)
        return True

    def stop(self, record: Record, event: Literal["busy", "lost"], now: float, detail: str) -> None:
        """The running attempt is over, the request waits again. A busy answer does not renew the wait."""
        record.happen(event, detail)
        if record.emitted and record.replica is not None:
            record.version = record.replica.agent.version
        record.sequences = sum(not choice.finished for choice in record.choices) or 1
        record.shun, record.replica = record.replica, None
        if event == "lost":
            record.why = detail
            record.deaths += 1
            record.since = now

    def end(self, record: Record, how: str) -> None:
        """The one ending."""
        record.happen("end", how)
        record.replica = None
        del self.records[record.id]
