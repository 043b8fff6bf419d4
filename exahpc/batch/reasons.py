"""Why rows failed, counted: reasons that differ only in their numbers count as one. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

_KINDS = 1024
_LONGEST = 300
_NUMBERS = re.compile(r"\d+")


class Reasons:
    """Counts of failed rows by reason. Memory is bounded: what comes after 1,024 kinds is not told apart."""

    def __init__(self, counts: Iterable[tuple[str, int]] = ()) -> None:
        self._counts: dict[str, int] = {}
        self._shown: dict[str, str] = {}
        for reason, rows in counts:
            self.add(reason, rows)

    def add(self, reason: str, rows: int = 1) -> None:
        reason = reason[:_LONGEST]
        kind = _NUMBERS.sub("0", reason)
        if kind not in self._counts and len(self._counts) >= _KINDS:
            kind = reason = "other reasons"
        self._counts[kind] = self._counts.get(kind, 0) + rows
        self._shown.setdefault(kind, reason)

    def most(self, kinds: int) -> list[tuple[str, int]]:
        """(reason as it was first met, rows) of the commonest ones."""
        found = sorted(self._counts, key=lambda kind: -self._counts[kind])[:kinds]
        return [(self._shown[kind], self._counts[kind]) for kind in found]


def reason_of(body: bytes, status: int) -> str:
    """The message of OpenAI's error body, or the best that can be said of any other."""
    try:
        message = msgspec.json.decode(body)["error"]["message"]
    except (msgspec.MsgspecError, RecursionError, KeyError, TypeError):
        message = body[:_LONGEST].decode("utf-8", "replace")
    return str(message or f"status {status}")
