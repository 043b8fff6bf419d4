"""Log-probabilities of tokens in OpenAI's two forms: of the chat endpoint, and of the older completions.

A token is written as its text. One that is no text by itself (part of a character) is written as OpenAI does:
"bytes:" and its bytes as \\xHH.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from exahpc.openai.body import Kind
from exahpc.openai.text import REPLACEMENT, breaks

LOWEST = -9999.0
"""What JSON shows for a probability of zero, as OpenAI does."""

_encode = msgspec.json.Encoder().encode


class Rated(msgspec.Struct, frozen=True, gc=False):
    """One token of an answer.

    piece: its bytes; offset: characters of the choice's text before it; logprob: None for the first token of a
    prompt; top: (bytes, log-probability) of the likeliest tokens in its place, best first.
    """

    piece: bytes
    offset: int
    logprob: float | None
    top: Sequence[tuple[bytes, float]]


def logprobs(kind: Kind, tokens: Sequence[Rated]) -> bytes:
    """The JSON object that a choice carries as its `logprobs`."""
    if kind == "chat":
        return _encode({"content": [_content(token) for token in tokens], "refusal": None})
    return _encode(
        {
            "text_offset": [token.offset for token in tokens],
            "token_logprobs": [_shown(token.logprob) for token in tokens],
            "tokens": [name(token.piece) for token in tokens],
            "top_logprobs": [_alternatives(token) for token in tokens],
        }
    )


def name(piece: bytes) -> str:
    """A token as text."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def offsets(text: str, pieces: Iterable[bytes]) -> list[int]:
    """Where in `text` each of these tokens of it begins.

    A token that is not where it should be (the BOS that a tokenizer puts in front of a text) takes no room.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    found, at = [], 0
    for piece in pieces:
        spoilt = breaks(decoder.getstate()[0], piece) and text.startswith(REPLACEMENT, at)
        found.append(at + spoilt)  # behind what stands for the incomplete character before it
        part = decoder.decode(piece)
        if not text.startswith(part, at):
            part = part.lstrip(" ")  # some vocabularies put a space in front of a text
        if text.startswith(part, at):
            at += len(part)
    return found


def _content(token: Rated) -> dict[str, Any]:
    value = _shown(token.logprob)
    return {**_named(token.piece, value), "top_logprobs": [_named(piece, _shown(v)) for piece, v in token.top]}


def _named(piece: bytes, value: float | None) -> dict[str, Any]:
    return {"token": name(piece), "logprob": value, "bytes": list(piece)}


def _alternatives(token: Rated) -> dict[str, float | None] | None:
    """The likeliest tokens by name, and this one: of two of the same name the likelier."""
    if token.logprob is None:
        return None
    found: dict[str, float | None] = {}
    for piece, value in token.top:
        found.setdefault(name(piece), _shown(value))
    found.setdefault(name(token.piece), _shown(token.logprob))
    return found


def _shown(value: float | None) -> float | None:
    return None if value is None else max(value, LOWEST)
