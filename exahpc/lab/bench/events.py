"""Events of a stream, as far as a load client looks at them. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Delta(msgspec.Struct, frozen=True):
    """Of a chat. reasoning_content: what some servers send before the answer."""

    content: str | None = None
    reasoning_content: str | None = None


class Choice(msgspec.Struct, frozen=True):
    text: str = ""
    delta: Delta | None = None


class Event(msgspec.Struct, frozen=True):
    """One event, or a whole answer. error: of a stream that failed after it had begun."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None

    @property
    def has_text(self) -> bool:
        for choice in self.choices:
            delta = choice.delta
            if choice.text or (delta is not None and (delta.content or delta.reasoning_content)):
                return True
        return False


class Lines:
    """Cuts what arrives into the JSON of events. over: the stream has said that it is complete."""

    def __init__(self) -> None:
        self._rest = b""
        self.over = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The JSON of each event that is complete now."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        for line in whole:
            if line.startswith(b"data:"):
                text = line[5:].strip()
                if text == b"[DONE]":
                    self.over = True
                elif text:
                    yield text


def told(text: str) -> str:
    """The message in the body of a refusal, or the body itself, on one line."""
    try:
        found = msgspec.json.decode(text)
        text = str(found["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        pass
    return " ".join(text.split())
