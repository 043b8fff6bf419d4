"""What an entry knows of a body; `peek` finds it. It is apart since mypyc does not compile msgspec's classes."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Tier = Literal["priority", "default", "flex"]


class Peek(msgspec.Struct, frozen=True):
    """What an entry may know of a body.

    model: None when absent or no string; max_tokens: None when absent or senseless (the agent refuses those);
    n: choices that are made, at least 1 (prompts x n, or x best_of); size: bytes of the body; tier: of service,
    "default" for all that are not known here; prompt: JSON of what the model is given, as it came.
    """

    model: str | None
    stream: bool
    max_tokens: int | None
    n: int
    size: int
    tier: Tier = "default"
    prompt: msgspec.Raw = msgspec.Raw(b"null")


class Given(msgspec.Struct):
    """Fields of a body that matter for it, as they came."""

    model: Any = None
    stream: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    n: Any = None
    best_of: Any = None
    service_tier: Any = None
    prompt: msgspec.Raw = msgspec.Raw(b"null")
    messages: msgspec.Raw = msgspec.Raw(b"null")
