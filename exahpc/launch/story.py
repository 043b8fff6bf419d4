"""The story of one request, gathered from the logs of all processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from exahpc.telemetry.logs import fields_of

_KEYS = ("request", "trace", "client")


def story(files: Iterable[Path], request: str) -> list[tuple[Path, str]]:
    """(file, line) of all lines that name this request, in the order of their times. request: our id, or what the
    client calls it."""
    files = list(files)
    names = {request}
    for _, line in _lines(files, [request]):
        fields = fields_of(line)
        called = {fields[key] for key in _KEYS if key in fields}
        if request in called:
            names |= called
    found = [(path, line) for path, line in _lines(files, sorted(names)) if _names(line, names)]
    return sorted(found, key=lambda one: one[1][:23])  # the time; lines of one file stay in order


def _names(line: str, names: set[str]) -> bool:
    fields = fields_of(line)
    if "request" in fields:
        return not names.isdisjoint(fields.get(key, "") for key in _KEYS)
    return any(name in line for name in names)


def _lines(files: Iterable[Path], words: list[str]) -> Iterator[tuple[Path, str]]:
    """Lines that hold one of the words; files that cannot be read have none."""
    wanted = [word.encode() for word in words]
    for path in files:
        try:
            with open(path, "rb") as file:
                for line in file:
                    if any(word in line for word in wanted):
                        yield path, line.decode(errors="replace").rstrip()
        except OSError:
            continue
