"""The ends of growing files, read piece by piece."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

_PIECE = 256 * 1024
_LAST = 8 * 1024


def log_files(root: Path, words: Sequence[str] = ()) -> list[Path]:
    """Logs below `root` whose path holds one of these words (all, without words)."""
    found = sorted(path for path in root.rglob("*") if path.suffix in (".log", ".out"))
    return [path for path in found if not words or any(word in str(path.relative_to(root)) for word in words)]


def last_line(path: Path, since: float = 0.0) -> str:
    """The last line with text in it, cut to 200 characters; empty when there is none, or the file was last written
    before `since` (its modification time)."""
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_mtime < since:
                return ""
            file.seek(max(0, file.seek(0, 2) - _LAST))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    except OSError:
        return ""
    found = next((line for line in reversed(lines) if line), "")
    return found if len(found) <= 200 else found[:197] + "..."


class Follower:
    """Remembers how far each file was told. `lines`: how much of a file is shown when it is first seen."""

    def __init__(self, root: Path, lines: int) -> None:
        self._root, self._lines = root, lines
        self._told: dict[Path, int] = {}

    def news(self, files: Sequence[Path]) -> Iterator[tuple[Path, str]]:
        """(file, new text) of each file that has some. A file that shrank is told from its start."""
        for path in files:
            try:
                with open(path, "rb") as file:
                    size = file.seek(0, 2)
                    first = path not in self._told
                    begin = max(0, size - _PIECE) if first else self._told[path]
                    if begin > size:
                        begin = 0
                    file.seek(begin)
                    data = file.read(min(size - begin, _PIECE))
                    self._told[path] = begin + len(data)
            except OSError:  # removed while we looked
                continue
            text = data.decode(errors="replace")
            if first:
                text = "".join(text.splitlines(keepends=True)[-self._lines :]) if self._lines else ""
            if text:
                yield path, text
