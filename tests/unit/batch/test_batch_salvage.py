"""What is whole in a journal of this batch is found, and nothing else."""

from __future__ import annotations

import itertools
import logging
import os
from pathlib import Path

import msgspec
import pytest

from exahpc.batch import rotating, salvage
from exahpc.batch.commits import Commit
from exahpc.batch.intervals import Ranges, count
from exahpc.batch.journal import MAGIC, Record, create_journal, journal_batch
from exahpc.batch.plan import Parts
from exahpc.batch.rotating import RotatingJournal
from exahpc.batch.salvage import EVERYTHING, Committed, Owners, journals, look, scan


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    made = Parts(tmp_path / "out.h5.parts")
    made.create()
    return made


def record(row: int, status: int = 200) -> Record:
    return Record(row, row + 1, status, b"id", b"x" * 50, 1, 2, 3, 4, "a-0")


def journal(parts: Parts, name: str, rows: list[int], batch: str = "batch_x") -> Path:
    writer = create_journal(parts.journal, name, batch)
    for row in rows:
        writer.append([msgspec.msgpack.encode(record(row))])
    writer.close()
    return writer.path


def found(parts: Parts, committed: Committed | None = None) -> dict[str, Ranges]:
    known = committed or Committed()
    return {
        item.journal: item.rows for item in scan(parts, "batch_x", {n: known.gaps(n) for n in journals(parts)})
    }


def test_a_journal_names_its_batch_and_those_of_others_are_named_and_ignored(
    parts: Parts, caplog: pytest.LogCaptureFixture
) -> None:
    journal(parts, "a-0", [1, 2])
    other = journal(parts, "a-1", [3, 4], "batch_y")
    foreign = parts.journal / "core.4711"
    foreign.write_bytes(b"\x7fELF" * 1000)
    (parts.journal / "a-2-1").write_bytes(MAGIC)  # its agent was killed just then
    assert found(parts) == {"a-0-1": [(1, 3)]}
    assert str(other) in caplog.text
    assert str(foreign) in caplog.text
    assert "a-2-1" not in caplog.text
    assert journal_batch(other)[0] == "batch_y"


@pytest.mark.case("B54")
def test_a_torn_end_is_named_and_what_is_whole_before_it_counts(
    parts: Parts, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path = journal(parts, "a-0", [1, 2, 3])
    path.write_bytes(path.read_bytes()[:-7])
    assert found(parts) == {"a-0-1": [(1, 3)]}
    assert str(path) in caplog.text


def test_only_what_no_commit_names_is_read(parts: Parts) -> None:
    path = journal(parts, "a-0", [1, 2, 3, 4])
    begin = journal_batch(path)[1]
    size = (path.stat().st_size - begin) // 4
    committed = Committed()
    committed.note(Commit(1, "a-0-1", begin + size, begin + 3 * size, [(2, 4)], []))
    gaps = {"a-0-1": committed.gaps("a-0-1")}
    assert [item.rows for item in scan(parts, "batch_x", gaps)] == [[(1, 2)], [(4, 5)]]


def test_a_journal_that_is_gone_holds_nothing(parts: Parts) -> None:
    assert scan(parts, "batch_x", {"a-0-1": EVERYTHING}) == []


def test_journals_are_looked_through_for_those_agents_that_may_have_written_them(parts: Parts) -> None:
    for name, row in (("a-0", 0), ("a-1", 1), ("a-1-7", 2), ("b-0", 3)):
        journal(parts, name, [row])
    seen = look(parts, "batch_x", Owners(["a/1", "a-1/7"]), {})
    rows = {agent: sorted(item.rows[0][0] for item in items) for agent, items in seen.items()}
    assert rows == {"a/1": [1, 2], "a-1/7": [2]}


def test_a_full_journal_is_never_written_again(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotating, "JOURNAL_BYTES", 500)
    agent = RotatingJournal(parts.journal, "a-0", "batch_x")
    places = [agent.write([[record(row)]])[0] for row in range(40)]
    names = journals(parts)
    assert len(names) > 3
    for name in names[:-1]:
        assert 500 <= parts.journal_file(name).stat().st_size < 700
    assert {name for name, _, _ in places} == set(names)
    assert sorted(row for rows in found(parts).values() for first, last in rows for row in range(first, last)) == [
        *range(40)
    ]


def test_a_full_disk_leaves_no_empty_journals_behind(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    agent = RotatingJournal(parts.journal, "a-0", "batch_x")
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        for _ in range(3):
            with pytest.raises(OSError, match="No space"):
                agent.write([[record(1)]])
    assert journals(parts) == []
    assert agent.write([[record(1)]])[0][0] == "a-0-1"


def test_a_long_gap_is_found_in_pieces_that_hold_each_row_once(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(salvage, "_PIECE_ROWS", 7)
    journal(parts, "a-0", [*range(40), 3, 4])
    pieces = scan(parts, "batch_x", {"a-0-1": EVERYTHING})
    assert [count(piece.rows) for piece in pieces] == [7, 7, 7, 7, 7, 7]
    assert all(one.end == after.start for one, after in itertools.pairwise(pieces))
