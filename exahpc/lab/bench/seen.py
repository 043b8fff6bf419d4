"""What one process of the load client saw. Values only; times are seconds of the machine's monotonic clock."""

from __future__ import annotations

from typing import Literal

import msgspec

from exahpc.lab.bench.wish import Wish
from exahpc.wire.messages import Sketch

SLICES = 10
"""Equal parts of the counted time: how much they differ tells how sure a mean is."""

Outcome = Literal["ok", "refused", "failed", "open"]


class Job(msgspec.Struct, frozen=True):
    """For process `number` of `of`: its share of the load."""

    wish: Wish
    key: str
    number: int
    of: int


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """One request. due: when it should have been sent; first, last: its first and last text, 0 when there was
    none; end: the answer was complete; pieces: of text; tokens, prompt: what the answer's usage says, 0:
    nothing; refused: 429 or 503; open: it was cut off at the end of the drain."""

    due: float
    start: float
    first: float
    last: float
    end: float
    pieces: int
    tokens: int
    prompt: int
    outcome: Outcome
    error: str = ""


class Seen(msgspec.Struct, frozen=True):
    """slices: pieces of text that arrived in each part of the counted time; gaps: between two pieces of an
    answer, microseconds; lag: by how much the process was late to do what was due, microseconds, sampled; cpu:
    seconds that it computed in the counted time; wanting: seconds that it waited for a core then, None where the
    kernel does not tell."""

    answers: list[Answer]
    slices: list[int]
    gaps: Sketch
    lag: Sketch
    cpu: float
    wanting: float | None
