"""Control: agent <-> broker, broker <-> entry."""

from __future__ import annotations

from typing import Literal

import msgspec

from exahpc.wire.messages.base import Message

Length = Literal["any", "short", "long"]
ReplicaPhase = Literal["down", "launching", "loading", "canary", "ready", "draining"]


class Service(msgspec.Struct, frozen=True, array_like=True):
    """What a replica did for its requests since its incarnation began, and how fast lately.

    served, failed: requests that ended well, or by a fault of the replica; odd: those of `served` whose answer
    looks senseless (one token over and over, nothing at all); ttft, tbt: medians over its last window of requests,
    in seconds, from when the replica got it to its first token, and between tokens, 0 where nothing was measured;
    samples: requests in that window; utilization: busy share of its accelerators (0..1), memory: share of their
    memory in use, without any of the node's; -1 where nobody can tell.
    """

    served: int = 0
    failed: int = 0
    odd: int = 0
    ttft: float = 0.0
    tbt: float = 0.0
    samples: int = 0
    utilization: float = -1.0
    memory: float = -1.0


class ReplicaState(msgspec.Struct, frozen=True, array_like=True):
    """One replica as its agent sees it. Ages in seconds, rates in tokens per second; idle, prefix_hits and
    preemptions: see ReplicaBeat.

    token_age, step_age: since the last token, and since the last sign that it computes (a token, or a step of a
    prompt); both 0 while it has no work."""

    slot: int
    incarnation: int
    phase: ReplicaPhase
    running: int = 0
    waiting: int = 0
    kv_free: int = 0
    token_age: float = 0.0
    token_rate: float = 0.0
    tokens: int = 0
    restarts: int = 0
    story: str = ""
    """Last event worth telling a user: exit code, signal, last line of the traceback."""
    idle: list[float] = []
    prefix_hits: int = 0
    preemptions: int = 0
    service: Service = Service()
    step_age: float = 0.0


class AgentHello(Message, frozen=True):
    """agent -> broker: first message of every connection.

    version: label of the deployment file that it serves, "" for the first one; until: Unix time at which Slurm
    ends its job, 0 when nobody knows; sequences: those that each of its replicas runs at once (versions may
    differ), 0: what the broker's own deployment file says.
    """

    pool: str
    task: int
    incarnation: int
    node: str
    address: str
    job: str
    restarts: int
    epoch: int
    replicas: list[ReplicaState]
    leases: list[int]
    version: str = ""
    until: float = 0.0
    sequences: int = 0


class AgentBeat(Message, frozen=True):
    """agent -> broker, every few seconds: only replicas that changed since the last beat."""

    number: int
    replicas: list[ReplicaState]


class AgentGone(Message, frozen=True):
    """agent -> broker: an orderly end. requeue: this task hands itself back to Slurm; suspect: because of its
    node."""

    reason: str
    requeue: bool
    suspect: bool = False


class LeaseWanted(Message, frozen=True):
    """agent -> broker: room for about `rows` more batch rows."""

    rows: int


class LeaseProgress(Message, frozen=True):
    """agent -> broker: rows of a lease that are safe in the journal.

    journal: file name inside the batch folder's journal/; start, end: the byte range whose records belong to
    this lease; finished: no more rows come. ok/failed: rows in the range. rows, bad: which rows of the range
    ended well or badly; returned: rows handed back; suspect: those of them under which a replica ended by itself
    (all four as [first, last) ranges). prompt_tokens, completion_tokens: of the rows in the range; errors: the
    commonest reasons of `bad`, and of how many rows each. held: why none can be read, or made safe, for now.
    """

    lease: int
    batch: str
    journal: str
    start: int
    end: int
    ok: int
    failed: int
    finished: bool
    rows: list[tuple[int, int]] = []
    bad: list[tuple[int, int]] = []
    returned: list[tuple[int, int]] = []
    suspect: list[tuple[int, int]] = []
    prompt_tokens: int = 0
    completion_tokens: int = 0
    errors: list[tuple[str, int]] = []
    held: str = ""


class Welcome(Message, frozen=True):
    """broker -> agent, entry: the answer to Hello. Whoever knows a higher epoch ignores this broker."""

    epoch: int
    beat_seconds: float


class LeaseGrant(Message, frozen=True):
    """broker -> agent: run rows [first, last) of batch `batch`, whose folder all nodes can reach.

    alone: they may be what kills replicas or agents: one at a time, nothing beside it; given_up: do not run them,
    each becomes an error record with this reason.
    """

    epoch: int
    lease: int
    batch: str
    folder: str
    first: int
    last: int
    alone: bool = False
    given_up: str = ""


class LeaseRevoke(Message, frozen=True):
    """broker -> agent: stop working on a lease; what it already finished was committed.

    soft: only hand back the rows that were not started yet; the others go on.
    """

    epoch: int
    lease: int
    soft: bool = False


class SwitchVersion(Message, frozen=True):
    """broker -> agent: drain within `seconds`, then start again with the deployment file of this version."""

    epoch: int
    version: str
    seconds: float


class RestartReplica(Message, frozen=True):
    """broker -> agent: kill the step of this incarnation and launch a new one."""

    epoch: int
    slot: int
    incarnation: int
    reason: str


class DrainAgent(Message, frozen=True):
    """broker -> agent: take nothing new, finish within `seconds`, then end with code 0 (or requeue)."""

    epoch: int
    seconds: float
    reason: str
    requeue: bool = False


class EntryHello(Message, frozen=True):
    """entry -> broker: first message of every connection. node: host name of an entry beside an agent, "" for one
    of the head."""

    index: int
    pid: int
    url: str
    node: str = ""


class EntryBeat(Message, frozen=True):
    """entry -> broker, every two seconds: requests in flight and ended so far.

    outstanding: tokens still to be prefilled or generated, of requests that run or wait; oldest: seconds that the
    first in line waits.
    """

    in_flight: int
    waiting: int
    done: int
    failed: int
    rejected: int
    resent: int
    outstanding: int = 0
    oldest: float = 0.0


class Route(msgspec.Struct, frozen=True, array_like=True):
    """One replica that takes traffic. capacity: sequences it runs at once; weight: 0..1, lowered when ill; probe:
    it was ill and is tried again: one request at a time of each entry, some of them soon."""

    slot: int
    incarnation: int
    capacity: int
    weight: float = 1.0
    probe: bool = False


class AgentRoute(msgspec.Struct, frozen=True, array_like=True):
    """One agent, where to reach it, and its serving replicas. incarnation: of the agent process.

    An agent that drains stands here without replicas: what runs there goes on. node: host name; version: see
    AgentHello; length: the requests that its pool is for.
    """

    pool: str
    task: int
    incarnation: int
    address: str
    replicas: list[Route]
    node: str = ""
    version: str = ""
    length: Length = "any"


class Share(msgspec.Struct, frozen=True, array_like=True):
    """The share (0..1) of requests that name no version which goes to one version."""

    version: str
    share: float


class FleetTable(Message, frozen=True):
    """broker -> entry: the whole table, on every change. version grows within an epoch.

    shares: by version, when there is more than one; empty: every replica may take any request. asleep: no replica
    runs because none was wanted: requests are held, not refused, while one is brought up.
    """

    epoch: int
    version: int
    agents: list[AgentRoute]
    shares: list[Share] = []
    asleep: bool = False
