"""The plan of one iteration: decided on the head rank, broadcast, run alike by every rank. Pure.

Plans are deltas: what a rank needs of a sequence beyond one iteration (its block table, how to draw) it keeps in
the tables of the sequence's *slot*. All ranks run all plans in the order in which they were made. So a plan may
read what an earlier one, or another row of the same plan, writes to the KV cache; and a block that was given back
may be handed out again while older plans are still on their way.
"""

from __future__ import annotations

import msgspec

from exahpc.wire.messages import Likelihood, Sampling


class Begin(msgspec.Struct, frozen=True, array_like=True):
    """A slot's new sequence; its block table is empty.

    seed, stream, sampling: how to draw, see `sampler`; stop_ids: not drawn before `sampling.min_new` tokens; ids:
    its tokens so far where drawing depends on them (penalties), else none; prompt: how many of `ids` are prompt.
    """

    slot: int
    sampling: Sampling = Sampling()
    seed: int = 0
    stream: int = 0
    stop_ids: list[int] = []
    ids: list[int] = []
    prompt: int = 0


class Row(msgspec.Struct, frozen=True, array_like=True):
    """New tokens of one sequence.

    past: its tokens that are cached already; ids: the new ones; sample: draw the next token after them (false for
    a part of a prompt); position: tokens that it generated before, the drawing's counter; score: the likelihood of
    each token of `ids` but the first, and of `target`, is wanted; target: the token after the last id where it
    is part of the prompt, else -1.
    """

    slot: int
    past: int
    ids: list[int]
    sample: bool
    position: int = 0
    score: bool = False
    target: int = -1

    @property
    def lines(self) -> int:
        """Lines of logits that the row asks for: after each id, or after the last, or none."""
        return len(self.ids) if self.score else int(self.sample)


class Plan(msgspec.Struct, frozen=True, array_like=True):
    """One iteration of one lane: set `wipe` to zero, begin, append blocks, run the rows.

    wipe: blocks that may hold numbers that are not finite; blocks: (slot, further blocks of its table); rows:
    those with one id first; stop: end the step in order, nothing else counts.
    """

    lane: int = 0
    wipe: list[int] = []
    begins: list[Begin] = []
    blocks: list[tuple[int, list[int]]] = []
    rows: list[Row] = []
    stop: bool = False

    @property
    def tokens(self) -> int:
        return sum(len(row.ids) for row in self.rows)

    @property
    def samples(self) -> int:
        return sum(row.sample for row in self.rows)


class Drawn(msgspec.Struct, frozen=True, array_like=True):
    """What the sampler answers to a plan.

    tokens: one for each row with `sample`, negative where the logits hold no number; logprobs: beside them, for
    those that want any (None: nobody does); scores: for each row with `score`, the likelihoods that it asked for.
    """

    tokens: list[int] = []
    logprobs: list[Likelihood | None] | None = None
    scores: list[list[Likelihood]] = []


FIRST = 3072
"""Bytes of the first of the one or two messages that carry a plan: nearly all plans need no second. So few that an
MPI library sends them at once; a larger message may wait until its sender, by then busy, calls MPI again."""
_HEADER = 4
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Plan).decode


def encode(plan: Plan) -> tuple[bytearray, bytearray]:
    """A plan as a message of FIRST bytes and one with the rest, of `rest(first)` bytes, mostly none."""
    body = _encode(plan)
    first = bytearray(FIRST)
    first[:_HEADER] = len(body).to_bytes(_HEADER, "little")
    head = body[: FIRST - _HEADER]
    first[_HEADER : _HEADER + len(head)] = head
    return first, bytearray(body[FIRST - _HEADER :])


def rest(first: bytearray) -> int:
    """Bytes of the second message; 0: there is none."""
    return max(0, int.from_bytes(first[:_HEADER], "little") - (FIRST - _HEADER))


def decode(first: bytearray, second: bytearray) -> Plan:
    size = int.from_bytes(first[:_HEADER], "little")
    return _decode(first[_HEADER : _HEADER + size] + second)
