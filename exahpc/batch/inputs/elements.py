"""The elements of a JSON array that is too large to be parsed as a whole: as bytes, not looked into."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from exahpc.batch.lines import LONGEST_LINE
from exahpc.errors import BatchError

_TOKEN = re.compile(rb'\\.|["{}\[\],]', re.DOTALL)
_CHUNK = 1 << 20


def elements(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """Each element of the one array in `file`, on one line. Raises BatchError where the array is broken."""
    buffer = file.read(_CHUNK).removeprefix(b"\xef\xbb\xbf").lstrip()
    if not buffer.startswith(b"["):
        raise BatchError(f"input {path} is no JSON array: choose its form by --format")
    start = at = 1
    depth, inside, some = 1, False, False
    while True:
        if buffer.endswith(b"\\"):
            buffer += file.read(1)  # never cut an escape
        for token in _TOKEN.finditer(buffer, at):
            mark = token.group()
            if mark == b'"':
                inside = not inside
            elif inside or mark[:1] == b"\\":
                continue
            elif mark in b"{[":
                depth += 1
            elif mark != b",":
                depth -= 1
            if inside or depth > 1 or mark not in b",]}":
                continue
            if depth == 1 and mark != b",":
                continue
            element = buffer[start : token.start()].strip()
            if element or some or mark == b",":
                yield element.replace(b"\n", b" ").replace(b"\r", b" ") or b","
            start, some = token.end(), True
            if depth == 0:
                _nothing_after(buffer[start:], file, path)
                return
        buffer, start, at = buffer[start:], 0, len(buffer) - start
        if len(buffer) > LONGEST_LINE:
            raise BatchError(f"input {path}: an element of the array is longer than {LONGEST_LINE} bytes")
        more = file.read(_CHUNK)
        if not more:
            raise BatchError(f"input {path}: the JSON array has no end: the file was cut off")
        buffer += more


def _nothing_after(rest: bytes, file: BinaryIO, path: Path) -> None:
    while not rest.strip():
        rest = file.read(_CHUNK)
        if not rest:
            return
    raise BatchError(f"input {path}: more than one JSON value: choose its form by --format")
