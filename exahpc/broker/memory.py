"""What a broker must remember beyond its own life: the journal's records and the state they add up to. Pure.

Replay is `apply` over all records in order. `records` writes a state out again, so each new broker's journal
begins with everything that counts and older files may go.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from exahpc.broker.values import AgentPhase, AgentView
from exahpc.broker.versions import RolloutState
from exahpc.wire.messages import AgentRoute

Kind = Literal["requeue", "cancel", "resubmit"]
Learns = Literal["wait", "load"]


class Record(msgspec.Struct, frozen=True, tag=True, tag_field="record"):
    """Base of journal records. at: seconds of the broker's clock (Unix time that never steps back)."""

    at: float


class Started(Record, frozen=True):
    """A broker has written out what it took over: older files do not count any more."""

    epoch: int
    host: str


class Agent(Record, frozen=True):
    """What is known of a task's current agent, or of the one that is leaving it."""

    key: str
    pool: str
    task: int
    phase: AgentPhase
    incarnation: int
    node: str
    job: str
    reason: str
    handed_back: bool
    route: AgentRoute | None
    parked: bool = False
    leaving: bool = False
    version: str = ""
    until: float = 0.0
    suspect: bool = False

    @staticmethod
    def of(view: AgentView, route: AgentRoute | None, now: float) -> Agent:
        return Agent(
            at=now,
            key=view.key,
            pool=view.pool,
            task=view.task,
            phase=view.phase,
            incarnation=view.incarnation,
            node=view.node,
            job=view.job,
            reason=view.reason,
            handed_back=view.handed_back,
            suspect=view.suspect,
            route=route,
            parked=view.parked,
            leaving=view.leaving,
            version=view.version,
            until=view.until,
        )

    def view(self) -> AgentView:
        return AgentView(
            key=self.key,
            pool=self.pool,
            task=self.task,
            phase=self.phase,
            since=self.at,
            incarnation=self.incarnation,
            node=self.node,
            job=self.job,
            reason=self.reason,
            handed_back=self.handed_back,
            suspect=self.suspect,
            parked=self.parked,
            leaving=self.leaving,
            version=self.version,
            until=self.until,
        )


class Begun(Record, frozen=True):
    """About to ask Slurm; durable before it is done, so that a new broker does not do it again at once."""

    key: str
    kind: Kind
    job: str


class Ended(Record, frozen=True):
    """How it went. job: where the task lives from now on (resubmit), else the job asked about; error: why not, or
    empty."""

    key: str
    kind: Kind
    job: str
    error: str


class Excluded(Record, frozen=True):
    """A node that lost an agent while Slurm took it for healthy."""

    node: str
    why: str


class NoRequeue(Record, frozen=True):
    """This site does not requeue tasks of this pool: resubmit instead."""

    pool: str
    why: str


class Replaced(Record, frozen=True):
    """This job's task was resubmitted: whoever still speaks from it does not tell where the task lives."""

    job: str


class Heir(Record, frozen=True):
    """The successor of a task. job: "" while it is being submitted; over: there is none any more."""

    key: str
    job: str
    over: bool = False


class Sample(Record, frozen=True):
    """What succession learns from: see `learned`."""

    pool: str
    what: Learns
    seconds: float


class Rollout(Record, frozen=True):
    """Where the rollout stands; the last one counts."""

    state: RolloutState


class Spent(Record, frozen=True):
    """Node-hours used until then, and the nodes that were held then."""

    node_hours: float
    nodes: int


AnyRecord = Started | Agent | Begun | Ended | Excluded | NoRequeue | Replaced | Heir | Sample | Rollout | Spent


def not_after(record: AnyRecord, now: float) -> AnyRecord:
    """The same record, with no time in it that has not come yet."""
    if isinstance(record, Rollout):
        state = record.state
        since, moved = min(state.since, now), min(state.moved, now)
        record = Rollout(record.at, msgspec.structs.replace(state, since=since, moved=moved))
    return msgspec.structs.replace(record, at=min(record.at, now))


REMEMBER_SECONDS = 24 * 3600.0
_SAMPLES = 1024


@dataclass
class Memory:
    """The sum of all records. history: when something was done about a task; open: begun, outcome unknown;
    placed: task -> "<array>_<task>" where it was last known; cancelled: jobs that we set out to cancel; replaced:
    jobs whose task was resubmitted or succeeded (both with the time); heirs: successors that are under way."""

    agents: dict[str, Agent] = field(default_factory=dict)
    leaving: dict[str, Agent] = field(default_factory=dict)
    history: dict[str, list[tuple[float, Kind]]] = field(default_factory=dict)
    open: dict[str, Begun] = field(default_factory=dict)
    placed: dict[str, str] = field(default_factory=dict)
    cancelled: dict[str, float] = field(default_factory=dict)
    replaced: dict[str, float] = field(default_factory=dict)
    excluded: dict[str, Excluded] = field(default_factory=dict)
    no_requeue: dict[str, NoRequeue] = field(default_factory=dict)
    heirs: dict[str, Heir] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    rollout: Rollout | None = None
    spent: Spent | None = None

    def apply(self, record: AnyRecord) -> None:
        match record:
            case Started():
                pass
            case Agent(leaving=True):
                self.leaving[record.key] = record
                if record.phase != "alive":
                    del self.leaving[record.key]
            case Agent():
                self.agents[record.key] = record
                if record.phase == "alive" and record.job and record.job not in self.replaced:
                    self._place(record.key, record.job)
            case Begun():
                self.open[record.key] = record
                self.history.setdefault(record.key, []).append((record.at, record.kind))
                if record.kind == "cancel":  # also when nobody will hear how it went
                    self._we_cancelled(record)
            case Ended():
                begun = self.open.pop(record.key, None)
                if not record.error and record.kind == "resubmit":
                    if begun is not None and begun.job:
                        self._new(record.job)
                    self._place(record.key, record.job)
                    if begun is not None and begun.job not in ("", record.job):
                        self.replaced[begun.job] = record.at
                if not record.error and record.kind == "cancel":
                    self._we_cancelled(record)
            case Excluded():
                self.excluded[record.node] = record
            case NoRequeue():
                self.no_requeue[record.pool] = record
            case Replaced():
                self.replaced[record.job] = record.at
            case Heir():
                if record.over:
                    self.heirs.pop(record.key, None)
                else:
                    self._new(record.job)
                    self.heirs[record.key] = record
            case Sample():
                self.samples = [*self.samples[-_SAMPLES:], record]
            case Rollout():
                self.rollout = record
            case Spent():
                self.spent = record

    def _new(self, job: str) -> None:
        """See `Fleet.submitted`."""
        self.replaced.pop(job, None)
        self.cancelled.pop(job, None)

    def _place(self, key: str, job: str) -> None:
        self.placed[key] = job
        if key in self.heirs and self.heirs[key].job == job:
            del self.heirs[key]

    def _we_cancelled(self, record: Begun | Ended) -> None:
        if record.job:
            self.cancelled[record.job] = max(record.at, self.cancelled.get(record.job, 0.0))

    def records(self, now: float) -> Iterator[AnyRecord]:
        """The state as records, without what is too old to matter: `apply` over them gives it back."""
        since = now - REMEMBER_SECONDS
        yield from (Replaced(at=at, job=job) for job, at in self.replaced.items() if at >= since)
        yield from self.agents.values()
        yield from self.leaving.values()
        # after the agents: a resubmitted task lives elsewhere than where its agent was last seen
        for key, job in self.placed.items():
            yield Ended(at=now, key=key, kind="resubmit", job=job, error="")
        for job, at in self.cancelled.items():
            if at >= since:
                yield Ended(at=at, key="", kind="cancel", job=job, error="")
        for key, acts in self.history.items():
            past = list(acts)
            if key in self.open:  # written out as what it is, below
                past.remove((self.open[key].at, self.open[key].kind))
            for at, kind in past:
                if at >= since:
                    yield Begun(at=at, key=key, kind=kind, job="")
                    yield Ended(at=at, key=key, kind=kind, job="", error="written out again")
        yield from self.open.values()
        yield from (record for record in self.excluded.values() if record.at >= since)
        yield from self.no_requeue.values()
        yield from self.heirs.values()
        yield from self.samples
        if self.rollout is not None:
            yield self.rollout
        if self.spent is not None:
            yield self.spent

    def carried(self) -> list[tuple[AgentView, AgentRoute | None]]:
        """What `Fleet` begins with."""
        agents = [*self.agents.values(), *self.leaving.values()]
        return [(agent.view(), agent.route) for agent in agents]

    def successors(self) -> dict[str, str]:
        """Task -> job, of those that are known."""
        return {key: heir.job for key, heir in self.heirs.items() if heir.job}
