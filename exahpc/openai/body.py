"""JSON of request bodies, and JSON string literals of responses.

msgspec is fast but refuses lone surrogates ("\\ud800", which clients make by cutting a string inside an emoji);
the standard library is the slow, tolerant second reader, and has the better error messages. No tokenizer can take
a lone surrogate, so each is read as U+FFFD, as every decoder of broken UTF-8 does.
"""

from __future__ import annotations

import json
from typing import Any, Literal, NoReturn

import msgspec

from exahpc.errors import RequestError

Kind = Literal["chat", "completion"]

_encode = msgspec.json.Encoder().encode


def literal(text: str) -> bytes:
    """`text` as a JSON string literal with its quotes. Lone surrogates come back as escapes, unchanged."""
    try:
        return _encode(text)
    except UnicodeEncodeError:
        return json.dumps(text).encode()


def printable(value: object, longest: int = 60) -> str:
    """`value` for an error message: short, and free of what no encoder or terminal takes."""
    try:
        text = repr(value).encode("utf-8", "backslashreplace").decode()
    except (ValueError, RecursionError):  # thousands of digits, or of brackets
        return f"this {type(value).__name__}"
    return shortened(text, longest)


def shortened(text: str, longest: int = 300) -> str:
    """`text`, cut for an error message: what others write into theirs can be as long as the request."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def load(body: bytes) -> dict[str, Any]:
    """The JSON object that `body` holds. Raises RequestError (400) that says where it is broken."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = _clean(_load_tolerant(body))
    if not isinstance(found, dict):
        raise RequestError(f"the request body must be a JSON object, not {_NAMES[type(found)]}")
    return found


_NAMES = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
}


def _load_tolerant(body: bytes) -> Any:
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as e:
        raise RequestError(f"the request body is not UTF-8: byte {e.start} is 0x{body[e.start]:02x}") from e
    except RecursionError as e:
        raise RequestError("the request body is nested too deeply") from e
    except ValueError as e:  # JSONDecodeError, or a number of thousands of digits
        raise RequestError(f"the request body is not valid JSON: {e}") from e


def _clean(value: Any) -> Any:
    """The same value with U+FFFD for every lone surrogate, keys included."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
