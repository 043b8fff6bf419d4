"""What every form of rows has in common: many lines are checked at once, one is read when its turn comes. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

import msgspec

from exahpc.batch.lines import Flaw, Row

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec says to ill-formed or ill-shaped JSON, and to lone surrogates."""

GROUP = 256
"""Lines that are decoded in one go; when one of them is unusual, the group is done line by line."""


@dataclass(slots=True)
class Checked:
    """What is found in n lines. kinds (of `plan.KINDS`), ids, limits (most new tokens, 0 when not said): of each
    line; flaws: by number
    of the line among the n, what the lists say of such a line means nothing; origins: where in its file each row
    comes from, when that is not the number of the line."""

    kinds: list[int] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    limits: list[int] = field(default_factory=list)
    flaws: dict[int, Flaw] = field(default_factory=dict)
    origins: list[int] | None = None

    def add(self, kind: int, custom_id: str, limit: int) -> None:
        """The next line is good."""
        self.kinds.append(kind)
        self.ids.append(custom_id)
        self.limits.append(limit)

    def flawed(self, flaw: Flaw) -> None:
        """The next line is flawed."""
        self.flaws[len(self.kinds)] = flaw
        self.add(0, flaw.custom_id or "", 0)


class RowForm(Protocol):
    """One way in which rows are written, a line each. Lines come without their line end, and are not blank."""

    @property
    def markers(self) -> tuple[bytes, ...]:
        """What stands in a line just before the prompt; the first that is found counts."""
        ...

    def check(self, lines: Sequence[bytes], first_row: int) -> Checked:
        """Validate lines that are rows `first_row` and those after it. Lines may be anything."""
        ...

    def read(self, line: bytes, row: int) -> Row | Flaw:
        """A line as a request. What was checked without a flaw has none."""
        ...


def not_utf8(line: bytes) -> Flaw | None:
    """The flaw of a line that is not UTF-8."""
    try:
        line.decode()
    except UnicodeDecodeError as error:
        return Flaw(f"not UTF-8: byte 0x{line[error.start]:02X} at column {error.start + 1}")
    return None


def refuse_constant(constant: str) -> NoReturn:
    """For `json.loads`, which would take NaN and Infinity."""
    raise ValueError(f"{constant} is not a JSON value")


def where(error: ValueError) -> str:
    """What `json.loads` found, and at which column."""
    return f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
