"""The few fields that routing needs, read without decoding the rest. The agent validates fully (`reading`)."""

from __future__ import annotations

import msgspec

from exahpc.openai.body import Kind, load
from exahpc.openai.peeked import Given, Peek, Tier

_TIERS: dict[str, Tier] = {"priority": "priority", "flex": "flex"}
_decode = msgspec.json.Decoder(Given).decode


def peek(body: bytes, kind: Kind) -> Peek:
    """Read the routing fields of `body`. Raises RequestError (400) when it is no JSON object.

    Fields of a wrong type count as absent: the agent validates fully and names what is wrong.
    """
    try:
        found = _decode(body)
        prompts = _prompts(found.prompt) if kind == "completion" else 1
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        whole = load(body)
        found = msgspec.convert({name: whole.get(name) for name in _NAMES}, Given)
        prompts = _count(whole.get("prompt")) if kind == "completion" else 1
    longest = _positive(found.max_tokens)
    if kind == "chat":
        longest = _positive(found.max_completion_tokens) or longest
    return Peek(
        model=found.model if isinstance(found.model, str) else None,
        stream=found.stream is True,
        max_tokens=longest,
        n=max(_positive(found.n) or 1, _positive(found.best_of) or 1) * prompts,
        size=len(body),
        tier=_TIERS.get(tier, "default") if isinstance(tier := found.service_tier, str) else "default",
        prompt=found.messages if kind == "chat" else found.prompt,
    )


_NAMES = [name for name in Given.__struct_fields__ if name not in ("prompt", "messages")]


def _prompts(raw: msgspec.Raw) -> int:
    beginning = bytes(memoryview(raw)[:8])
    if beginning[:1] != b"[" or beginning[1:].lstrip()[:1].isdigit():  # a text, or its tokens: there may be many
        return 1
    return _count(msgspec.json.decode(raw))


def _count(prompt: object) -> int:
    """Prompts in the field `prompt`: a list of numbers is one prompt."""
    if not isinstance(prompt, list) or not prompt or isinstance(prompt[0], int):
        return 1
    return len(prompt)


def _positive(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**31:
        return value
    return None
