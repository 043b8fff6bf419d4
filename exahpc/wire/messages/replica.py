"""The local socket: agent <-> the head rank of a replica."""

from __future__ import annotations

from typing import Literal

import msgspec

from exahpc.wire.messages.base import Message


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
    batch: lower priority than online requests; request: whose it is, where that is to be logged, else "".
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
    request: str = ""


class Admits(Message, frozen=True):
    """agent -> replica: sequences that came in the same moment, in order. Each stands for itself."""

    admits: list[Admit]


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
    from its second one on (the first has none before it), all of them before the first token drawn; cached: with
    the first token of a sequence, how many tokens of its prompt were in the prefix cache, if any.
    """

    tokens: list[tuple[int, int]]
    ended: list[tuple[int, Reason]]
    logprobs: list[tuple[int, Likelihood]] = []
    prompt: list[tuple[int, list[Likelihood]]] = []
    cached: list[tuple[int, int]] = []


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
