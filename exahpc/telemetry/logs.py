"""Log lines that people read and programs can search: a sentence, then key=value.

    2026-01-31 12:00:00,123 WARNING entry-0 exahpc.entry: it is taken back request=cmpl-1a attempt=1 why="gone"

A request has a line only when something went wrong, or when its client asked for its story (see `stories`). Keys:
request (our id), trace, client (the client's: trace id, x-request-id), attempt, agent, slot, incarnation,
sequence, why.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator
from typing import Any

_PLAIN = re.compile(r"[^\s\"=\\]+")
_PAIR = re.compile(r'(?<=\s)([a-z_]+)=("(?:[^"\\]|\\.)*"|[^\s"=\\]+)')
_FIELD = "told"


def told(**fields: object) -> dict[str, Any]:
    """For `extra=` of a logging call: the line ends with these fields; empty ones are left out."""
    return {_FIELD: {name: value for name, value in fields.items() if value not in ("", None)}}


class Lines(logging.Formatter):
    """The sentence, the fields, then a traceback if there is one."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        fields: dict[str, object] = getattr(record, _FIELD, {})
        return " ".join(
            [super().formatMessage(record), *(f"{key}={_shown(value)}" for key, value in fields.items())]
        )


def _shown(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def begin(form: str) -> None:
    """Log to standard error from now on. form: of a line, as logging has it, without the fields."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines(form))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def fields_of(line: str) -> dict[str, str]:
    """What a line ends with."""
    return dict(_pairs(line))


def _pairs(line: str) -> Iterator[tuple[str, str]]:
    for key, text in _PAIR.findall(line):
        yield key, json.loads(text) if text.startswith('"') else text
