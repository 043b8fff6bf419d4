"""Look through journals for whole records that no commit names yet."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from exahpc.batch.commits import AnyEvent, Commit
from exahpc.batch.intervals import Intervals, Ranges, ranges_of
from exahpc.batch.journal import MAGIC, FrameReader, Record, journal_batch
from exahpc.batch.plan import SOURCE, Parts

log = logging.getLogger(__name__)

Gaps = list[tuple[int, int | None]]
_PIECE_ROWS = 20_000
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


def journals(parts: Parts) -> list[str]:
    return sorted(name for name in os.listdir(parts.journal) if name != SOURCE and name[0] != ".")


class Owners:
    """Whose a journal may be, by its name: those of agent "pool/task" begin with "pool-task-"."""

    def __init__(self, agents: Iterable[str]) -> None:
        self._by_prefix = {agent.replace("/", "-") + "-": agent for agent in agents}

    def of(self, journal: str) -> list[str]:
        """Agents that may have written it: those of "a-1/7" begin like some of "a/1"."""
        cuts = (journal[: at + 1] for at, character in enumerate(journal) if character == "-")
        return [self._by_prefix[cut] for cut in cuts if cut in self._by_prefix]


def look(parts: Parts, batch: str, owners: Owners, known: dict[str, Gaps]) -> dict[str, list[Found]]:
    """What journals of some agents hold, by agent; known: the gaps of those that commits have named. Blocking."""
    whose = {name: agents for name in journals(parts) if (agents := owners.of(name))}
    found: dict[str, list[Found]] = {}
    for item in scan(parts, batch, {name: known.get(name, EVERYTHING) for name in whose}):
        for agent in whose[item.journal]:
            found.setdefault(agent, []).append(item)
    return found


def scan(parts: Parts, batch: str, gaps: dict[str, Gaps]) -> list[Found]:
    """What the given gaps of journals hold, made durable. Blocking. A torn or damaged frame ends its gap.

    Journals of another batch, files that are none, and what cannot be read are named in the log.
    """
    found: list[Found] = []
    for name, ranges in gaps.items():
        path = parts.journal_file(name)
        try:
            reader: FrameReader[Record] = FrameReader(path, Record)
        except FileNotFoundError:  # removed since the folder was listed: all of it was in segments
            continue
        try:
            owner, begin = journal_batch(path)
            if owner != batch:
                if owner is not None or reader.size > len(MAGIC):
                    log.warning("%s is no journal of batch %s (of %s): ignored", path, batch, owner or "none")
                continue
            for start, end in ranges:
                found += _gap(name, reader, max(start, begin), end)
            reader.sync()  # what was read may only have been on its way to the disk
        finally:
            reader.close()
    return found


def _gap(name: str, reader: FrameReader[Record], start: int, end: int | None) -> Iterator[Found]:
    """What one gap holds, in pieces: memory does not grow with it."""
    rows: dict[int, bool] = {}
    reached = start
    for _, after, record in reader.frames(start, end):
        rows.setdefault(record.row, record.status == 200)
        reached = after
        if len(rows) >= _PIECE_ROWS:
            yield _found(name, start, reached, rows)
            start, rows = reached, {}
    if rows:
        yield _found(name, start, reached, rows)
    left = (reader.size if end is None else end) - reached
    if left > 0:
        # the end of what was written when an agent died, or is being written now
        log.info("%s: %d bytes from byte %d on hold no whole record: not counted", reader.path, left, reached)


def _found(name: str, start: int, end: int, rows: dict[int, bool]) -> Found:
    good = ranges_of(row for row, ok in rows.items() if ok)
    bad = ranges_of(row for row, ok in rows.items() if not ok)
    return Found(name, start, end, good, bad)
