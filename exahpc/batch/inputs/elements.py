"""The elements of a JSON array that is too large to be parsed as a whole: as bytes, not looked into.

What stands between elements is found for a megabyte at once: where strings begin and end, and how deep brackets
are, are running sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from exahpc.batch.lines import LONGEST_LINE
from exahpc.errors import BatchError

_CHUNK = 1 << 20
_QUOTE, _COMMA, _OPEN, _CLOSE = 1, 2, 3, 4
_MARK_OF = {b'"'[0]: _QUOTE, b","[0]: _COMMA, **dict.fromkeys(b"{[", _OPEN), **dict.fromkeys(b"]}", _CLOSE)}
_MARKS = bytes(_MARK_OF.get(byte, 0) for byte in range(256))


class _Scanner:
    """Finds the marks that end elements. Fed with all bytes after the array's bracket, in pieces."""

    def __init__(self) -> None:
        self._depth, self._inside, self.over = 1, False, False

    def ends(self, piece: bytes) -> list[int]:
        """Where in this piece elements end: at commas of the array, and at its end, the last one then."""
        if b"\\" in piece:  # neither an escaped quote nor the second of two backslashes means anything
            piece = piece.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
        marks = np.frombuffer(piece.translate(_MARKS), np.uint8)
        places = np.flatnonzero(marks != 0)  # of booleans: three times as fast
        marks = marks[places]
        inside = (np.cumsum(marks == _QUOTE) + self._inside) % 2 == 1
        self._inside = bool(inside[-1]) if len(inside) else self._inside
        outside = ~inside
        places, marks = places[outside], marks[outside]
        steps = (marks == _OPEN).astype(np.int64) - (marks == _CLOSE)
        depths = np.cumsum(steps) + self._depth
        self._depth = int(depths[-1]) if len(depths) else self._depth
        commas: npt.NDArray[np.intp] = places[(marks == _COMMA) & (depths == 1)]
        closed = places[depths == 0][:1]
        self.over = bool(len(closed))
        return [*commas[commas < closed[0]].tolist(), int(closed[0])] if self.over else commas.tolist()


def elements(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """Each element of the one array in `file`, on one line. Raises BatchError where the array is broken."""
    piece = _read(file).removeprefix(b"\xef\xbb\xbf").lstrip()
    if not piece.startswith(b"["):
        raise BatchError(f"input {path} is no JSON array: choose its form by --format")
    scanner, rest, piece, some = _Scanner(), b"", piece[1:], False
    while True:
        begun, buffer, start = len(rest), rest + piece, 0
        ends = scanner.ends(piece)
        for end in ends:
            element = buffer[start : begun + end].strip()
            start = begun + end + 1
            last = scanner.over and end == ends[-1]
            if element or some or not last:
                yield element.replace(b"\n", b" ").replace(b"\r", b" ") or b","
            some = True
        rest = buffer[start:]
        if scanner.over:
            _nothing_after(rest, file, path)
            return
        if len(rest) > LONGEST_LINE:
            raise BatchError(f"input {path}: an element of the array is longer than {LONGEST_LINE} bytes")
        piece = _read(file)
        if not piece:
            raise BatchError(f"input {path}: the JSON array has no end: the file was cut off")


def _read(file: BinaryIO) -> bytes:
    """The next piece; it does not end within an escape."""
    piece = file.read(_CHUNK)
    while piece.endswith(b"\\") and (more := file.read(1)):
        piece += more
    return piece


def _nothing_after(rest: bytes, file: BinaryIO, path: Path) -> None:
    while not rest.strip():
        rest = file.read(_CHUNK)
        if not rest:
            return
    raise BatchError(f"input {path}: more than one JSON value: choose its form by --format")
