"""From a response body: text, finish reason and log-probabilities of its first choice. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

REASONS = {"none": 0, "stop": 1, "length": 2, "other": 3}
"""Finish reasons as numbers; none: of rows without an answer."""


class _Token(msgspec.Struct, gc=False):
    logprob: float | None = None


class _Logprobs(msgspec.Struct):
    content: list[_Token] | None = None
    token_logprobs: list[float | None] | None = None


class _Message(msgspec.Struct, gc=False):
    content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    message: _Message | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Body(msgspec.Struct):
    choices: list[_Choice]


_decode = msgspec.json.Decoder(_Body).decode


class Answer(NamedTuple):
    """text: UTF-8, a lone surrogate as its three bytes; reason: of REASONS; logprobs: natural, one a token."""

    text: bytes
    reason: int
    logprobs: Sequence[float]


NO_ANSWER = Answer(b"", 0, ())


def answer_of(body: bytes) -> Answer:
    """Of a completion or chat completion; what cannot be read is no answer."""
    try:
        choice = _decode(body).choices[0]
    except (msgspec.MsgspecError, RecursionError):
        choice = _slowly(body)
    except IndexError:
        return NO_ANSWER
    text = choice.text if choice.message is None else choice.message.content
    reason = REASONS.get(choice.finish_reason or "none", REASONS["other"])
    rated = () if choice.logprobs is None else _values(choice.logprobs)
    return Answer((text or "").encode("utf-8", "surrogatepass"), reason, rated)


def _values(found: _Logprobs) -> Sequence[float]:
    values = [token.logprob for token in found.content] if found.content is not None else found.token_logprobs
    return [math.nan if value is None else value for value in values or ()]


def _slowly(body: bytes) -> _Choice:
    """For what msgspec refuses: lone surrogates."""
    try:
        found: Any = json.loads(body)
        return msgspec.convert(found["choices"][0], _Choice)
    except (ValueError, RecursionError, LookupError, TypeError):
        return _Choice()
