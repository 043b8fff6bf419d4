"""One row of a batch, and why a row cannot be run. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from exahpc.openai.body import Kind

LONGEST_LINE = 32 * 2**20
"""Bytes of one line at most: half of what a message between processes may hold."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row that can be run. body: JSON bytes of the request; seed: the body's own seed, if any."""

    kind: Kind
    custom_id: str
    body: bytes
    seed: int | None


@dataclass(frozen=True, slots=True)
class Flaw:
    """Why a row cannot be run. custom_id: when it has one."""

    reason: str
    custom_id: str | None = None


def id_bytes(custom_id: str | None) -> bytes | None:
    """custom_id as stored: UTF-8, lone surrogates kept."""
    return None if custom_id is None else custom_id.encode("utf-8", "surrogatepass")


def id_text(stored: bytes | None) -> str | None:
    return None if stored is None else stored.decode("utf-8", "surrogatepass")
