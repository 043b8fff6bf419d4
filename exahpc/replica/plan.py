"""The plan of one iteration: decided on the head rank, broadcast, run alike by every rank. Pure.

A plan belongs to one *lane*: a group of sequences that goes through the pipeline as one micro-batch. Rows are
in the order in which tokens are laid out; the order of plans is the same on all ranks.
"""

from __future__ import annotations

import msgspec

from exahpc.wire.messages import Sampling


class Row(msgspec.Struct, frozen=True, array_like=True):
    """New tokens of one sequence.

    slot: its place in the KV cache; past: tokens already cached there; ids: the new tokens; sample: draw the
    next token after them (false for a part of a prompt); the rest: how to draw, see `sampler`.
    """

    slot: int
    past: int
    ids: list[int]
    sample: bool
    sampling: Sampling = Sampling()
    seed: int = 0
    stream: int = 0
    position: int = 0


class Move(msgspec.Struct, frozen=True, array_like=True):
    """Copy the first `length` cached tokens of slot `source` to slot `target` before the rows run."""

    source: int
    target: int
    length: int


class Plan(msgspec.Struct, frozen=True, array_like=True):
    """One iteration of one lane: wipe slots, then move, then run the rows.

    wipe: slots whose cache may hold numbers that are not finite; stop: end the step in order, nothing else counts.
    """

    lane: int = 0
    wipe: list[int] = []
    moves: list[Move] = []
    rows: list[Row] = []
    stop: bool = False

    @property
    def tokens(self) -> int:
        return sum(len(row.ids) for row in self.rows)

    @property
    def samples(self) -> int:
        return sum(row.sample for row in self.rows)


_HEADER = 4
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Plan).decode


def most_bytes(sequences: int, tokens: int) -> int:
    """Size of a buffer that holds any plan of so many rows and tokens.

    MessagePack needs at most 9 bytes a number, 5 a token id (ids are below 2**32), 5 an array header.
    """
    return _HEADER + 64 + sequences * (9 + (5 + 3 * 9) + (5 + 5 + 20 * 9)) + tokens * 5


def encode(plan: Plan, buffer: memoryview) -> int:
    """Write `plan` to the front of `buffer` (see `most_bytes`) and return its length in bytes."""
    body = _encode(plan)
    size = _HEADER + len(body)
    buffer[:_HEADER] = len(body).to_bytes(_HEADER, "little")
    buffer[_HEADER:size] = body
    return size


def decode(buffer: memoryview) -> Plan:
    size = int.from_bytes(buffer[:_HEADER], "little")
    return _decode(buffer[_HEADER : _HEADER + size])
