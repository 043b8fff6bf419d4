"""The story of one request, gathered from the logs of all processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from exahpc.telemetry.logs import fields_of

MOST_LINES = 200
"""In `brief`."""
_LAST = 16 * 2**20  # bytes of a file's end that `brief` looks at
_KEYS = ("request", "trace", "client")


def story(files: Iterable[Path], request: str) -> list[tuple[Path, str]]:
    """(file, line) of all lines that name this request, in the order of their times. request: our id, or what the
    client calls it."""
    files = list(files)
    names = _names(files, request)
    found = [(path, line) for path, line in _lines(files, sorted(names)) if _tells(line, names)]
    return _in_order(found)


def brief(logs: Path, request: str) -> list[tuple[Path, str]]:
    """The same for somebody who waits: lines with the field `request` only, from the ends of the entries' logs and
    of the agents that these name, MOST_LINES at most. logs: the deployment's folder of logs."""
    entries = sorted(logs.rglob("entry*.log"))
    names = _names(entries, request, _LAST)
    found = _told(entries, names)
    agents = {agent for _, line in found if (agent := fields_of(line).get("agent"))}
    for agent in sorted(agents):  # "POOL/TASK"
        place = logs / agent.replace("/", "-")
        if place.parent == logs:
            found += _told(sorted({*place.glob("*.log")}.difference(entries)), names)
    return _in_order(found)[:MOST_LINES]


def _told(files: Iterable[Path], names: set[str]) -> list[tuple[Path, str]]:
    found = _lines(files, sorted(names), _LAST)
    return [(path, line) for path, line in found if "request" in fields_of(line) and _tells(line, names)]


def _names(files: Iterable[Path], request: str, last: int = 0) -> set[str]:
    """What this request is called, by us and by its client."""
    names = {request}
    for _, line in _lines(files, [request], last):
        fields = fields_of(line)
        called = {fields[key] for key in _KEYS if key in fields}
        if request in called:
            names |= called
    return names


def _in_order(found: list[tuple[Path, str]]) -> list[tuple[Path, str]]:
    return sorted(found, key=lambda one: one[1][:23])  # the time; lines of one file stay in order


def _tells(line: str, names: set[str]) -> bool:
    fields = fields_of(line)
    if "request" in fields:
        return not names.isdisjoint(fields.get(key, "") for key in _KEYS)
    return any(name in line for name in names)


def _lines(files: Iterable[Path], words: list[str], last: int = 0) -> Iterator[tuple[Path, str]]:
    """Lines that hold one of the words; files that cannot be read have none. last: bytes of a file, 0 for all."""
    wanted = [word.encode() for word in words]
    for path in files:
        try:
            with open(path, "rb") as file:
                if last and (size := file.seek(0, 2)) > last:
                    file.seek(size - last)
                    file.readline()  # what is left of a line
                else:
                    file.seek(0)
                for line in file:
                    if any(word in line for word in wanted):
                        yield path, line.decode(errors="replace").rstrip()
        except OSError:
            continue
