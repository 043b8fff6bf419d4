"""One line of an OpenAI batch file: parsed the same way at validation and when a row is run. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import msgspec

URLS: dict[str, Literal["chat", "completion"]] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completion",
}
LONGEST_LINE = 32 * 2**20
"""Bytes of one line at most: half of what a message between processes may hold."""


@dataclass(frozen=True)
class Row:
    """A line that can be run. body: JSON bytes of the request body; seed: the body's own seed, if any."""

    kind: Literal["chat", "completion"]
    custom_id: str
    body: bytes
    model: str | None
    seed: int | None


@dataclass(frozen=True)
class Flaw:
    """Why a line cannot be run. custom_id: when the line has one."""

    reason: str
    custom_id: str | None = None


_NULL = msgspec.Raw(b"null")


class _Body(msgspec.Struct):
    model: Any = None
    stream: Any = None
    seed: Any = None
    messages: msgspec.Raw = _NULL
    prompt: msgspec.Raw = _NULL


class _Line(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


_fast_line = msgspec.json.Decoder(_Line).decode
_fast_body = msgspec.json.Decoder(_Body).decode


def parse_line(line: bytes) -> Row | Flaw:
    """One line without its line end (and without a byte order mark)."""
    if len(line) > LONGEST_LINE:
        return Flaw(f"the line is longer than {LONGEST_LINE} bytes")
    try:
        line.decode()
    except UnicodeDecodeError as error:
        return Flaw(f"not UTF-8: byte 0x{line[error.start]:02X} at column {error.start + 1}")
    try:
        found = _fast_line(line)
        raw = bytes(found.body)
        body = _fast_body(raw)
    except (
        msgspec.DecodeError,
        RecursionError,
    ):  # ill-formed, ill-shaped, or a lone surrogate: tell exactly which
        try:
            return _parse_slowly(line)
        except RecursionError:
            return Flaw("not JSON that can be read: nested too deeply")
    return _row(found.custom_id, found.method, found.url, raw, body)


def _row(custom_id: str, method: str, url: str, raw: bytes, body: _Body) -> Row | Flaw:
    kind = URLS.get(url)
    if method != "POST":
        return Flaw(f"'method' must be \"POST\", not {_show(method)}", custom_id)
    if kind is None:
        return Flaw(f"'url' must be one of {', '.join(URLS)}, not {_show(url)}", custom_id)
    if body.model is not None and not isinstance(body.model, str):
        return Flaw(f"'body.model' must be a string, not {_show(body.model)}", custom_id)
    if body.stream not in (None, False):
        return Flaw("'body.stream' must be absent or false in a batch", custom_id)
    if kind == "chat" and bytes(body.messages) == b"null":
        return Flaw("'body.messages' is missing", custom_id)
    if kind == "completion" and bytes(body.prompt) == b"null":
        return Flaw("'body.prompt' is missing", custom_id)
    seed = body.seed if isinstance(body.seed, int) and not isinstance(body.seed, bool) else None
    if seed is not None and not -(2**63) <= seed < 2**63:
        return Flaw("'body.seed' must fit into 64 bits", custom_id)
    return Row(kind, custom_id, raw, body.model, seed)


def _parse_slowly(line: bytes) -> Row | Flaw:
    try:
        found = json.loads(line, parse_constant=_refuse)
    except ValueError as error:
        return Flaw(f"not JSON: {_where(error)}")
    if not isinstance(found, dict):
        return Flaw(f"must be a JSON object, not {_named(found)}")
    given = found.get("custom_id")
    custom_id = given if isinstance(given, str) else None
    for field in ("custom_id", "method", "url"):
        if field not in found:
            return Flaw(f"'{field}' is missing", custom_id)
        if not isinstance(found[field], str):
            return Flaw(f"'{field}' must be a string, not {_named(found[field])}", custom_id)
    if "body" not in found:
        return Flaw("'body' is missing", custom_id)
    body = found["body"]
    if not isinstance(body, dict):
        return Flaw(f"'body' must be a JSON object, not {_named(body)}", custom_id)
    there = msgspec.Raw(b"0")
    fields = _Body(
        model=body.get("model"),
        stream=body.get("stream"),
        seed=body.get("seed"),
        messages=_NULL if body.get("messages") is None else there,
        prompt=_NULL if body.get("prompt") is None else there,
    )
    return _row(found["custom_id"], found["method"], found["url"], json.dumps(body).encode(), fields)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON value")


def _where(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at column {error.colno}"
    return str(error)


def _named(value: object) -> str:
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "an array"}
    return names.get(type(value), "an object")


def _show(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def id_bytes(custom_id: str | None) -> bytes | None:
    """custom_id as stored: UTF-8, lone surrogates kept."""
    return None if custom_id is None else custom_id.encode("utf-8", "surrogatepass")


def id_text(stored: bytes | None) -> str | None:
    return None if stored is None else stored.decode("utf-8", "surrogatepass")
