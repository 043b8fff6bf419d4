"""An agent's journals of one batch: the one it writes to, and when it begins the next. Blocks: used in threads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from exahpc.batch.journal import JOURNAL_BYTES, FrameWriter, Record, create_journal


class RotatingJournal:
    """folder: of journals; name: how the files begin. A file is created when there is something to write."""

    def __init__(self, folder: Path, name: str, batch: str) -> None:
        self._folder, self._name, self._batch = folder, name, batch
        self._file: FrameWriter | None = None
        self._encode = msgspec.msgpack.Encoder().encode

    def write(self, groups: Sequence[Sequence[Record]]) -> list[tuple[str, int, int]]:
        """Make records durable: (journal, start, end) of each group, all in one file. Raises OSError: nothing
        counts, try again."""
        if self._file is not None and self._file.end >= JOURNAL_BYTES:
            self.close()
        if self._file is None:
            self._file = create_journal(self._folder, self._name, self._batch)
        name = self._file.path.name
        try:
            places = [(name, *self._file.append([self._encode(record) for record in group])) for group in groups]
            self._file.sync()
        except OSError:
            # what the kernel dropped after a failed sync is not known: never append to this file again
            self.close()
            raise
        return places

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
