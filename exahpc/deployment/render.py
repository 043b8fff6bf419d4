"""A deployment as TOML text: what `exahpc up` leaves in the deployment's folder for all its processes."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from exahpc.deployment.frozen import Frozen
from exahpc.deployment.spec import Deployment


def toml(deployment: Deployment) -> str:
    """TOML text that `parse.load` reads back as the same value. Keys that equal their default are left out."""
    lines: list[str] = []
    _table(deployment, (), lines)
    return "\n".join(lines).lstrip("\n") + "\n"


def _table(value: Frozen, path: tuple[str, ...], lines: list[str]) -> None:
    """Plain keys first: in TOML whatever follows a header belongs to it."""
    inner: list[tuple[str, Any]] = []
    for field in msgspec.structs.fields(value):
        item = getattr(value, field.name)
        if isinstance(item, Frozen) or (isinstance(item, tuple) and item and isinstance(item[0], Frozen)):
            inner.append((field.encode_name, item))
        elif item is not None and (item != field.default or _settled(path, field.encode_name)):
            lines.append(f"{field.encode_name} = {_scalar(item)}")
    for name, item in inner:
        here = (*path, name)
        for entry in item if isinstance(item, tuple) else (item,):
            at = len(lines)
            _table(entry, here, lines)
            if len(lines) > at or isinstance(item, tuple):
                header = f"[[{'.'.join(here)}]]" if isinstance(item, tuple) else f"[{'.'.join(here)}]"
                lines[at:at] = ["", header]


def _settled(path: tuple[str, ...], name: str) -> bool:
    """Keys whose default depends on the launcher are always written."""
    return path == ("head",) and name in ("placement", "bind")


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace(
            "\x7f", "\\u007f"
        )  # JSON escapes the rest as TOML wants
    if isinstance(value, tuple):
        return f"[{', '.join(_scalar(item) for item in value)}]"
    return repr(value)
