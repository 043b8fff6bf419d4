"""Look through journals for whole records that no commit names yet."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from exahpc.batch.commits import AnyEvent, Commit
from exahpc.batch.intervals import Intervals, Ranges, ranges_of
from exahpc.batch.journal import MAGIC, FrameReader, Record
from exahpc.batch.plan import SOURCE, Parts

Gaps = list[tuple[int, int | None]]
EVERYTHING: Gaps = [(len(MAGIC), None)]


@dataclass(frozen=True)
class Found:
    """Rows whose records lie in bytes [start, end) of journal/`journal`; rows ended well, bad badly."""

    journal: str
    start: int
    end: int
    rows: Ranges
    bad: Ranges


@dataclass
class Committed:
    """Which bytes of which journal commits have named: what need not be looked at again."""

    bytes: dict[str, Intervals] = field(default_factory=dict)

    def note(self, event: AnyEvent) -> None:
        if isinstance(event, Commit):
            self.bytes.setdefault(event.journal, Intervals()).add(event.start, event.end)

    def gaps(self, journal: str) -> Gaps:
        """Byte ranges not named yet; the last is open."""
        position, found = len(MAGIC), Gaps()
        for start, end in self.bytes.get(journal, Intervals()):
            if start > position:
                found.append((position, start))
            position = max(position, end)
        return [*found, (position, None)]


def journals(parts: Parts, prefix: str = "") -> list[str]:
    return sorted(n for n in os.listdir(parts.journal) if n.startswith(prefix) and n != SOURCE and n[0] != ".")


def journal_prefix(agent: str) -> str:
    """How the names of all journals of agent "pool/task" begin."""
    return agent.replace("/", "-") + "-"


def scan(parts: Parts, gaps: dict[str, Gaps]) -> list[Found]:
    """What the given gaps of journals hold, made durable. Blocking. A torn or damaged frame ends its gap."""
    found: list[Found] = []
    for name, ranges in gaps.items():
        reader: FrameReader[Record] = FrameReader(parts.journal_file(name), Record)
        try:
            for start, end in ranges:
                rows: dict[int, bool] = {}
                reached = start
                for _, after, record in reader.frames(start, end):
                    rows.setdefault(record.row, record.status == 200)
                    reached = after
                if rows:
                    good = ranges_of(row for row, ok in rows.items() if ok)
                    bad = ranges_of(row for row, ok in rows.items() if not ok)
                    found.append(Found(name, start, reached, good, bad))
            reader.sync()  # what was read may only have been on its way to the disk
        finally:
            reader.close()
    return found
