"""The `messages` of a chat request: roles and text, ready for a chat template."""

from __future__ import annotations

from typing import get_args

from exahpc.openai.body import printable
from exahpc.openai.fields import refuse
from exahpc.openai.request import Message, Role

_ROLES: dict[object, Role] = {role: role for role in get_args(Role)} | {"developer": "system"}
_KEPT = ("name", "reasoning_content", "tool_call_id")
"""Further text fields that chat templates know."""


def read_messages(value: object) -> tuple[Message, ...]:
    """Validate `messages`. Raises RequestError (400) that names the index of the bad one."""
    if value is None:
        refuse("messages", 'missing: give a list of {"role": ..., "content": ...}')
    if not isinstance(value, list):
        refuse("messages", f"{printable(value)} is no list of messages")
    if not value:
        refuse("messages", "empty: give at least one message")
    return tuple(_message(item, f"messages[{i}]") for i, item in enumerate(value))


def _message(value: object, where: str) -> Message:
    if not isinstance(value, dict):
        refuse(where, f'{printable(value)} is no object: give {{"role": ..., "content": ...}}')
    role = value.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        refuse(f"{where}.role", f"{printable(role)} is unknown: give one of {', '.join(map(str, _ROLES))}")
    for name in ("tool_calls", "function_call", "audio"):
        if value.get(name):
            refuse(
                f"{where}.{name}", "not supported: write what it says into the content", "unsupported_parameter"
            )
    extra = tuple((name, value[name]) for name in _KEPT if isinstance(value.get(name), str))
    return Message(_ROLES[role], _content(value.get("content"), f"{where}.content"), extra)


def _content(value: object, where: str) -> str:
    """A string, or text parts joined by newlines (as vLLM joins them for templates that take a string)."""
    if isinstance(value, str):
        return value
    if value is None:
        refuse(where, "missing: give a string, or a list of text parts")
    if not isinstance(value, list):
        refuse(where, f"{printable(value)} is neither a string nor a list of text parts")
    return "\n".join(_part(item, f"{where}[{i}]") for i, item in enumerate(value))


def _part(value: object, where: str) -> str:
    if not isinstance(value, dict):
        refuse(where, f'{printable(value)} is no part: give {{"type": "text", "text": ...}}')
    if value.get("type") != "text":
        remedy = "this endpoint takes text only"
        refuse(
            where,
            f"a part of type {printable(value.get('type'))} is not supported: {remedy}",
            "unsupported_content",
        )
    text = value.get("text")
    if not isinstance(text, str):
        refuse(f"{where}.text", f"{printable(text)} is no string")
    return text
