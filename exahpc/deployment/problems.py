"""All that is wrong with a deployment file, collected so that a user sees everything at once."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from typing import Any

from exahpc.errors import DeploymentError


def shown(value: Any) -> str:
    """A value as TOML would write it, cut to one short line."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


class Problems:
    """Problems by key path. A rule over several keys asks `clean` first, so that one mistake is told once."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._lines: list[str] = []
        self._bad: set[str] = set()

    def add(self, path: str, value: Any, remedy: str) -> None:
        self._bad.add(path)
        self._lines.append(f"{path} = {shown(value)}: {remedy}")

    def missing(self, path: str, remedy: str) -> None:
        self._bad.add(path)
        self._lines.append(f"{path} is missing: {remedy}")

    def unknown(self, path: str, key: str, known: Iterable[str]) -> None:
        """An unknown key, with the closest known one."""
        names = sorted(known)
        close = difflib.get_close_matches(key, names, n=1, cutoff=0.6)
        hint = f'did you mean "{close[0]}"?' if close else f"known keys here: {', '.join(names)}"
        self._bad.add(path)
        self._lines.append(f"{path}: unknown key; {hint}")

    def clean(self, *paths: str) -> bool:
        """Whether nothing was said yet about these keys."""
        return self._bad.isdisjoint(paths)

    def raise_if_any(self) -> None:
        """Raises DeploymentError with one line a problem."""
        if not self._lines:
            return
        count = len(self._lines)
        title = f"{self._source}: {count} problem{'s' if count > 1 else ''}"
        raise DeploymentError("\n  ".join([title, *self._lines]))
