"""Control: the command line and the broker."""

from __future__ import annotations

from typing import Literal

import msgspec

from exahpc.wire.messages.base import Message
from exahpc.wire.messages.control import ReplicaState


class StatusQuery(Message, frozen=True):
    """client -> broker."""


class AgentStatus(msgspec.Struct, frozen=True):
    """One array task in `status`. alive: its beats arrive; job: "<array>_<task>" or "".

    health: (slot, state, why) of each replica that is not healthy in the broker's eyes; version: see AgentHello.
    parked: the task is not wanted now (`[pool.scaling]`, `[budget]`). expected: not heard only since the broker's
    restart.
    """

    pool: str
    task: int
    node: str
    job: str
    job_state: str
    alive: bool
    beat_age: float
    restarts: int
    replicas: list[ReplicaState]
    health: list[tuple[int, str, str]] = []
    version: str = ""
    parked: bool = False
    expected: bool = False


class BatchStatus(msgspec.Struct, frozen=True):
    """One batch in `status`. Counts are rows; state: opening, running, finished, failed or cancelled.

    note: why it failed, or waits; skipped: those of `failed` that were bad in the input; node_hours: used by
    the deployments that ran it while they did. Of what ended since this broker opened the batch, prompt_tokens,
    completion_tokens: tokens; errors: the commonest reasons of failed rows, and of how many rows each.
    """

    batch: str
    folder: str
    total: int
    ok: int
    failed: int
    leased: int
    state: str
    note: str = ""
    skipped: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    errors: list[tuple[str, int]] = []
    node_hours: float = 0.0


class EntryStatus(msgspec.Struct, frozen=True):
    """One HTTP entry in `status`. node: host name of an entry beside an agent, "" for one of the head.

    in_flight, waiting: requests now; done, failed: since it started.
    """

    index: int
    url: str
    node: str
    in_flight: int
    waiting: int
    done: int
    failed: int


class StatusReply(Message, frozen=True):
    """broker -> client. node_hours: used by the deployment so far; draining: it is being taken down."""

    epoch: int
    wanted: int
    ready: int
    agents: list[AgentStatus]
    entries: list[EntryStatus]
    batches: list[BatchStatus]
    notes: list[str]
    node_hours: float = 0.0
    draining: bool = False


class BatchOpen(Message, frozen=True):
    """client -> broker: run (or go on with) the batch whose folder is named. Answer: BatchState or Refused."""

    batch: str
    folder: str


class BatchQuery(Message, frozen=True):
    """client -> broker. Answer: BatchState or Refused."""

    batch: str


class BatchCancel(Message, frozen=True):
    """client -> broker. Answer: BatchState or Refused."""

    batch: str


class BatchState(Message, frozen=True):
    """broker -> client."""

    status: BatchStatus


class DrainAll(Message, frozen=True):
    """client -> broker: `down`: drain every agent within `seconds`, then tell them to end. Answer: Accepted."""

    seconds: float


RolloutPhase = Literal["idle", "canary", "judging", "widening", "done", "reverting", "reverted"]


class RolloutStart(Message, frozen=True):
    """client -> broker: bring the deployment to this version, whose file lies in the folder.

    Answer: RolloutStatus or Refused."""

    version: str


class RolloutCommand(Message, frozen=True):
    """client -> broker: go on without judging any more, stop and go back, or go back after the end.

    Answer: RolloutStatus or Refused."""

    command: Literal["promote", "abort", "rollback"]


class RolloutQuery(Message, frozen=True):
    """client -> broker. Answer: RolloutStatus."""


class VersionStatus(msgspec.Struct, frozen=True):
    """One of the two versions of a rollout.

    tasks: those that have it, or will have it at their next start; ready: replicas; share: of the requests that
    name no version; served, failed, odd: requests since the rollout began (see `Service`); deaths: replicas that
    ended or were restarted; ttft, tbt: medians of its replicas in seconds, 0 where nothing was measured.
    """

    version: str
    tasks: int
    ready: int
    share: float
    served: int
    failed: int
    odd: int
    deaths: int
    ttft: float
    tbt: float


class RolloutStatus(Message, frozen=True):
    """broker -> client.

    current: version in force; phase: of the last rollout, since so many seconds; tasks: of the deployment; story:
    why it stands where it stands; versions: the old and the new one, none while idle.
    """

    current: str
    phase: RolloutPhase
    seconds: float
    tasks: int
    story: str
    versions: list[VersionStatus]


class Accepted(Message, frozen=True):
    """broker -> client."""


class Refused(Message, frozen=True):
    """broker -> client: why not, and what to do."""

    reason: str
