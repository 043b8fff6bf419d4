"""What is written down of submitted batches and uploaded files: values, their order, their names. Pure.

A submission never changes; its state is written by whoever runs it; `tray` and `shelf` say where both lie. The
phases carry the names of OpenAI's batch statuses. "cancelling" is none: a batch that is to be cancelled, and has
not ended, is.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from exahpc.errors import StateError

Phase = Literal["validating", "in_progress", "finalizing", "completed", "failed", "cancelled", "expired"]

ENDS: frozenset[Phase] = frozenset({"completed", "failed", "cancelled", "expired"})
_NEXT: dict[Phase, frozenset[Phase | str]] = {
    "validating": ENDS.union({"in_progress", "finalizing"}),
    "in_progress": ENDS.union({"finalizing"}),
    "finalizing": ENDS,
}

BATCH_PREFIX, FILE_PREFIX = "batch_", "file-"
_BATCH, _FILE = (re.compile(f"{prefix}[0-9a-f]{{24}}") for prefix in (BATCH_PREFIX, FILE_PREFIX))


def new_id(prefix: str, milliseconds: int, noise: int) -> str:
    """An id that sorts by its time: 48 bits of it, then 48 bits of `noise`."""
    return f"{prefix}{milliseconds & (1 << 48) - 1:012x}{noise & (1 << 48) - 1:012x}"


def is_batch_id(text: str) -> bool:
    """Whether this may be part of a path as a batch's name."""
    return _BATCH.fullmatch(text) is not None


def is_file_id(text: str) -> bool:
    return _FILE.fullmatch(text) is not None


class Order(msgspec.Struct, frozen=True):
    """What `POST /v1/batches` asked for, beyond the input itself. window: as given, and in seconds."""

    input_file: str
    endpoint: str
    window: str
    window_seconds: int
    metadata: dict[str, str] | None = None


class Submission(msgspec.Struct, frozen=True):
    """One batch that the clerk is to run.

    created: seconds since 1970; owner: see `entry.keys`, "" for the command line; sources: absolute paths of the
    inputs; options: how they are read, as JSON (`batch.inputs.options`); output: path of the results file;
    order: None for the command line.
    """

    id: str
    created: int
    owner: str
    sources: tuple[str, ...]
    output: str
    options: msgspec.Raw = msgspec.Raw(b"{}")
    skip_invalid: bool = False
    order: Order | None = None

    @property
    def expires(self) -> int | None:
        """When it ends with what is done by then; None: never."""
        return None if self.order is None else self.created + self.order.window_seconds


class LineError(msgspec.Struct, frozen=True):
    """Why a batch was refused. line: of the input, from 1; None: all of it; file: where there are several."""

    message: str
    line: int | None = None
    code: str = "invalid_request"
    file: str = ""


class State(msgspec.Struct, frozen=True):
    """How far a submission is. Counts are rows; times: when each phase began, in seconds since 1970.

    batch: its id at the broker, "" before it was validated; note: why it waits or failed; prompt_tokens,
    completion_tokens: known at the end.
    """

    phase: Phase = "validating"
    batch: str = ""
    total: int = 0
    ok: int = 0
    failed: int = 0
    times: dict[Phase, int] = {}
    errors: tuple[LineError, ...] = ()
    note: str = ""
    output_file: str | None = None
    error_file: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def ended(self) -> bool:
        return self.phase in ENDS

    def to(self, phase: Phase, now: int) -> State:
        """The same in another phase; unchanged when it is in that one. Raises StateError where no way leads."""
        if phase == self.phase:
            return self
        if phase not in _NEXT.get(self.phase, ()):
            raise StateError(
                f"a batch that is {self.phase} cannot become {phase} (its phases so far: {self.times})"
            )
        return msgspec.structs.replace(self, phase=phase, times={**self.times, phase: now})


class FileRecord(msgspec.Struct, frozen=True):
    """One file that a client uploaded or may download. size: bytes; created: seconds since 1970."""

    id: str
    size: int
    created: int
    filename: str
    purpose: Literal["batch", "batch_output"]
