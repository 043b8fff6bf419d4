"""Everything the processes of a deployment say to each other: frozen structs, MessagePack, nothing else.

Links (see `link`): entry -> agent, agent -> broker, entry -> broker, client -> broker, agent -> replica (local
socket). The left side connects. Each struct names its link and direction. A message of an unknown type or
shape raises `msgspec.ValidationError` in the decoder and is dropped by the link.

Names: a *replica* is (pool, slot, incarnation); `task` is the array index; `agent` is "<pool>/<task>";
`epoch` counts brokers, `attempt` counts the times that one request was sent to a replica.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Message(msgspec.Struct, frozen=True, tag=True, tag_field="message_type", array_like=True):
    """Base: tagged with the class name, encoded as an array (short, positional)."""


# --- requests: entry -> agent ------------------------------------------------------------------------------


class Resume(msgspec.Struct, frozen=True, array_like=True):
    """What the client of one choice already has, for a request that is sent again.

    ids: token ids emitted so far; sent: characters of text passed to the client so far; finished: this
    choice ended before (nothing more is generated for it).
    """

    choice: int
    ids: list[int]
    sent: int
    finished: bool = False


class Submit(Message, frozen=True):
    """entry -> agent: run this request on replica `slot`.

    request: the id the client sees ("chatcmpl-..."); kind: which body this is; seed: the random seed, fixed by
    the entry at admission so that a re-send continues the same draw; created: Unix seconds shown to the
    client; resume: empty for a fresh request; first: no byte of a stream was sent yet (a re-sent chat stream
    must not repeat the role chunk).
    """

    request: str
    attempt: int
    slot: int
    incarnation: int
    kind: Literal["chat", "completion"]
    body: bytes
    stream: bool
    seed: int
    created: int
    resume: list[Resume] = []
    first: bool = True


class Submits(Message, frozen=True):
    """entry -> agent: requests that came in the same moment, in order. Each stands for itself."""

    submits: list[Submit]


class Cancel(Message, frozen=True):
    """entry -> agent: the client left, or its deadline passed; free the sequences within one step."""

    request: str


# --- requests: agent -> entry ------------------------------------------------------------------------------


class Frame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Progress of one choice. The entry keeps ids and sent, and passes `data` on without decoding it.

    index: token ids emitted for this choice before this frame (a gap or overlap means a stale frame);
    sent: characters of text delivered for this choice, this frame's included; data: response bytes to pass on
    (SSE events; empty for a request that does not stream); finished: the choice has ended.
    """

    request: str
    attempt: int
    choice: int
    index: int
    ids: list[int]
    sent: int
    data: bytes
    finished: bool = False


class Frames(Message, frozen=True):
    """agent -> entry: all frames due for this link, in order."""

    frames: list[Frame]


class Done(Message, frozen=True):
    """agent -> entry: the request ended well. data: the last bytes (whole JSON body when not streaming)."""

    request: str
    attempt: int
    data: bytes
    prompt_tokens: int
    completion_tokens: int


class Failed(Message, frozen=True):
    """agent -> entry: this attempt ended badly.

    retry: another replica may succeed (the entry sends it again within its bounds); otherwise the client gets
    `status` and OpenAI's error object. own_exit: the replica died by itself under this request, which makes
    the request suspect.
    """

    request: str
    attempt: int
    status: int
    message: str
    type: str = "server_error"
    param: str | None = None
    code: str | None = None
    retry: bool = False
    own_exit: bool = False


class Busy(Message, frozen=True):
    """agent -> entry: that replica is full or gone; pick again. Nothing was started."""

    request: str
    attempt: int


class Room(Message, frozen=True):
    """agent -> entry: load of this task's replicas, pushed after Busy and when room comes back.

    outstanding: (slot, tokens still to be generated or prefilled) for each serving replica.
    """

    outstanding: list[tuple[int, int]]


# --- control: agent -> broker ------------------------------------------------------------------------------

ReplicaPhase = Literal["down", "launching", "loading", "canary", "ready", "draining"]


class ReplicaState(msgspec.Struct, frozen=True, array_like=True):
    """One replica as its agent sees it. Ages in seconds, rates in tokens per second; idle, prefix_hits and
    preemptions: see ReplicaBeat."""

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


class AgentHello(Message, frozen=True):
    """agent -> broker: first message of every connection. public: the CURVE public key of its request link."""

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


class AgentBeat(Message, frozen=True):
    """agent -> broker, every few seconds: only replicas that changed since the last beat."""

    number: int
    replicas: list[ReplicaState]


class AgentGone(Message, frozen=True):
    """agent -> broker: an orderly end. requeue: this task hands itself back to Slurm."""

    reason: str
    requeue: bool


class LeaseWanted(Message, frozen=True):
    """agent -> broker: room for about `rows` more batch rows."""

    rows: int


class LeaseProgress(Message, frozen=True):
    """agent -> broker: rows of a lease that are safe in the journal.

    journal: file name inside the batch folder's journal/; start, end: the byte range whose records belong to
    this lease; finished: no more rows come. ok/failed: rows in the range. rows, bad: which rows of the range
    ended well or badly; returned: rows handed back unstarted (all three as [first, last) ranges).
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


# --- control: broker -> agent ------------------------------------------------------------------------------


class Welcome(Message, frozen=True):
    """broker -> agent, entry: the answer to Hello. Whoever knows a higher epoch ignores this broker."""

    epoch: int
    beat_seconds: float


class LeaseGrant(Message, frozen=True):
    """broker -> agent: run rows [first, last) of batch `batch`, whose folder all nodes can reach."""

    epoch: int
    lease: int
    batch: str
    folder: str
    first: int
    last: int


class LeaseRevoke(Message, frozen=True):
    """broker -> agent: stop working on a lease; what it already finished was committed.

    soft: only hand back the rows that were not started yet; the others go on.
    """

    epoch: int
    lease: int
    soft: bool = False


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


# --- control: broker <-> entry -----------------------------------------------------------------------------


class EntryHello(Message, frozen=True):
    """entry -> broker: first message of every connection."""

    index: int
    pid: int
    url: str


class EntryBeat(Message, frozen=True):
    """entry -> broker: requests in flight and ended so far, for `status`."""

    in_flight: int
    waiting: int
    done: int
    failed: int
    rejected: int
    resent: int


class Route(msgspec.Struct, frozen=True, array_like=True):
    """One replica that takes traffic. capacity: sequences it runs at once; weight: 0..1, lowered when ill."""

    slot: int
    incarnation: int
    capacity: int
    weight: float = 1.0


class AgentRoute(msgspec.Struct, frozen=True, array_like=True):
    """One agent, where to reach it, and its serving replicas. incarnation: of the agent process."""

    pool: str
    task: int
    incarnation: int
    address: str
    replicas: list[Route]


class FleetTable(Message, frozen=True):
    """broker -> entry: the whole table, on every change. version grows within an epoch."""

    epoch: int
    version: int
    agents: list[AgentRoute]


# --- control: client (command line) <-> broker -------------------------------------------------------------


class StatusQuery(Message, frozen=True):
    """client -> broker."""


class AgentStatus(msgspec.Struct, frozen=True):
    """One array task in `status`. alive: its beats arrive; job: "<array>_<task>" or ""."""

    pool: str
    task: int
    node: str
    job: str
    job_state: str
    alive: bool
    beat_age: float
    restarts: int
    replicas: list[ReplicaState]


class BatchStatus(msgspec.Struct, frozen=True):
    """One batch in `status`. Counts are rows; state: opening, running, finished, failed or cancelled.

    note: why, when the state is failed.
    """

    batch: str
    folder: str
    total: int
    ok: int
    failed: int
    leased: int
    state: str
    note: str = ""


class StatusReply(Message, frozen=True):
    """broker -> client."""

    epoch: int
    wanted: int
    ready: int
    agents: list[AgentStatus]
    entries: list[tuple[int, str, int, int, int, int]]
    """(index, url, in flight, waiting, done, failed) of each entry."""
    batches: list[BatchStatus]
    notes: list[str]


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


class Accepted(Message, frozen=True):
    """broker -> client."""


class Refused(Message, frozen=True):
    """broker -> client: why not, and what to do."""

    reason: str


# --- local socket: agent <-> replica's head rank -----------------------------------------------------------


class Adopt(Message, frozen=True):
    """agent -> replica: I am your agent now. The replica drops all running sequences and answers ReplicaHello."""

    agent: str


class Sampling(msgspec.Struct, frozen=True, array_like=True):
    """How the tokens of one sequence are drawn; the defaults change nothing, temperature 0 is greedy.

    top_k: 0 is off; min_p: share of the best token's probability that a token needs; penalties and logit_bias
    are applied to the logits before the temperature; min_new: the sequence's stop ids are not drawn before it
    has so many tokens; logprobs: so many alternatives beside the drawn token, -1 for none at all;
    prompt_logprobs: the same for the tokens of the prompt.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_new: int = 0
    logprobs: int = -1
    prompt_logprobs: int = -1

    @property
    def looks_back(self) -> bool:
        """Whether drawing depends on the tokens that the sequence holds already: penalties count them."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


class Admit(Message, frozen=True):
    """agent -> replica: one sequence.

    ids: prompt (and, for a re-send, the emitted tokens after it); new: most tokens still to generate;
    position: tokens generated before (the sampler's counter is (seed, stream, position), and the last `position`
    of `ids` are those tokens); stream: choice index; stop_ids: token ids that end the sequence (not emitted);
    batch: lower priority than online requests.
    """

    sequence: int
    ids: list[int]
    new: int
    position: int
    seed: int
    stream: int
    stop_ids: list[int]
    sampling: Sampling = Sampling()
    batch: bool = False


class Abort(Message, frozen=True):
    """agent -> replica: free this sequence within one step; no answer."""

    sequence: int


class StopReplica(Message, frozen=True):
    """agent -> replica: end the step in order, exit code 0."""


class ReplicaHello(Message, frozen=True):
    """replica -> agent, after Adopt. tokens: KV capacity; context: longest sequence."""

    pool: str
    slot: int
    incarnation: int
    sequences: int
    tokens: int
    context: int
    step: str


Reason = Literal["stop", "length", "error"]


class Likelihood(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Natural log-probability of one token, given all before it, and of the likeliest ones in its place.

    Of the raw logits: before penalties, bias and temperature. top: (token id, log-probability), best first.
    """

    token: int
    logprob: float
    top: list[tuple[int, float]]


class Tokens(Message, frozen=True):
    """replica -> agent, once a step: (sequence, token id) pairs, then the sequences that ended and why.

    logprobs: of those of the tokens whose sequence asked for them; prompt: of tokens of a prompt, piece by piece
    from its second one on (the first has none before it), all of them before the first token drawn.
    """

    tokens: list[tuple[int, int]]
    ended: list[tuple[int, Reason]]
    logprobs: list[tuple[int, Likelihood]] = []
    prompt: list[tuple[int, list[Likelihood]]] = []


class ReplicaBeat(Message, frozen=True):
    """replica -> agent, every second and after each change of the set of sequences.

    kv_free: tokens of KV cache that no running sequence holds; kv_cached: those of them that still hold prompts
    for the next request that begins alike; prefix_hits: prompt tokens that did not have to be computed so far;
    preemptions: running sequences that had to give way so far; idle: share of the last seconds with work in which
    each rank had nothing to do (0..1).
    """

    running: int
    waiting: int
    kv_free: int
    steps: int
    tokens: int
    kv_cached: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    idle: list[float] = []


class NoRoom(Message, frozen=True):
    """replica -> agent: this sequence can never fit (agents check first; a mismatch is a defect).

    full: it could, but too many wait already: send it elsewhere or later.
    """

    sequence: int
    reason: str
    full: bool = False


EntryToAgent = Submit | Submits | Cancel
AgentToEntry = Frames | Done | Failed | Busy | Room
ToBroker = (
    AgentHello
    | AgentBeat
    | AgentGone
    | LeaseWanted
    | LeaseProgress
    | EntryHello
    | EntryBeat
    | StatusQuery
    | BatchOpen
    | BatchQuery
    | BatchCancel
    | DrainAll
)
BrokerToAgent = Welcome | LeaseGrant | LeaseRevoke | RestartReplica | DrainAgent
BrokerToEntry = Welcome | FleetTable
BrokerToClient = StatusReply | BatchState | Accepted | Refused
AgentToReplica = Adopt | Admit | Abort | StopReplica
ReplicaToAgent = ReplicaHello | Tokens | ReplicaBeat | NoRoom
