"""Reading the fields of a body one by one; every refusal names field, value and remedy.

`null` counts as absent, as OpenAI's own servers and clients treat it.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Collection, KeysView, Mapping
from typing import Any, NoReturn

from exahpc.errors import RequestError
from exahpc.openai.body import printable

_LARGEST = 2**31 - 1
_LIKE = 0.85
"""Similarity from which an unknown field is taken for a misspelt one ("max_token", "temprature", "topP")."""
_LOOKED_AT = 8
"""Unknown fields of one body that are compared: a body of thousands must not cost seconds."""


def refuse(field: str, message: str, code: str | None = None) -> NoReturn:
    """Raise the 400 that blames `field`."""
    raise RequestError(f"{field}: {message}", param=field, code=code)


class Fields:
    """A decoded JSON object with typed, bounded reads."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._body = body

    @property
    def names(self) -> KeysView[str]:
        """Those that the body gives."""
        return self._body.keys()

    def get(self, name: str) -> Any:
        """The raw value, or None."""
        return self._body.get(name)

    def integer(self, name: str, low: int, high: int = _LARGEST) -> int | None:
        value = self._body.get(name)
        if value is None:
            return None
        bounds = f"at least {low}" if high == _LARGEST else f"from {low} to {high}"
        if not isinstance(value, int) or isinstance(value, bool):
            refuse(name, f"{printable(value)} is no integer: give one {bounds}, or leave it out")
        if not low <= value <= high:
            refuse(name, f"{printable(value)} is out of range: give an integer {bounds}, or leave it out")
        return value

    def number(self, name: str, low: float, high: float, default: float, *, open_low: bool = False) -> float:
        """A number in [low, high], or in (low, high] when `open_low`."""
        value = self._body.get(name)
        if value is None:
            return default
        bounds = f"{'above' if open_low else 'from'} {low:g} {'up ' if open_low else ''}to {high:g}"
        if not isinstance(value, int | float) or isinstance(value, bool):
            refuse(name, f"{printable(value)} is no number: give one {bounds}, or leave it out")
        if not low <= value <= high or (open_low and value == low):
            refuse(name, f"{printable(value)} is out of range: give a number {bounds}, or leave it out")
        return float(value)

    def boolean(self, name: str) -> bool:
        value = self._body.get(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            refuse(name, f"{printable(value)} is no boolean: give true or false, or leave it out")
        return value

    def string(self, name: str) -> str | None:
        value = self._body.get(name)
        if value is not None and not isinstance(value, str):
            refuse(name, f"{printable(value)} is no string: give one, or leave it out")
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        value = self._body.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            refuse(name, f"{printable(value)} is no object: give one, or leave it out")
        return value

    def neutral(self, name: str, values: Collection[Any], remedy: str) -> None:
        """Refuse a field that is not supported, unless its value asks for nothing.

        `True` is no 1 here: {"best_of": true} asks for something else than 1.
        """
        value = self._body.get(name)
        if value is None or any(value == v and isinstance(value, bool) == isinstance(v, bool) for v in values):
            return
        refuse(name, f"{printable(value)} is not supported: {remedy}", "unsupported_parameter")

    def misspelt(self, known: frozenset[str]) -> None:
        """Refuse an unknown field that looks like a known one; other unknown fields are ignored."""
        if self._body.keys() <= known:
            return
        unknown = [name for name in self._body if name not in known]
        for name in unknown[:_LOOKED_AT]:
            meant = _meant(name[:64], known)
            if meant:
                refuse(name, f"unknown field: did you mean {meant!r}?", "unknown_parameter")


@functools.lru_cache(1024)
def _meant(name: str, known: frozenset[str]) -> str | None:
    """The known field that `name` misspells, if any. Cached: the same clients send the same fields."""
    plain = {_plain(field): field for field in known}
    near = difflib.get_close_matches(_plain(name), plain, 1, _LIKE)
    return plain[near[0]] if near else None


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
