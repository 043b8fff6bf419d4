"""A fold saves a broker the reading of commit journals; it never changes what they say."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exahpc.batch import folds, opened
from exahpc.batch.book import Book
from exahpc.batch.commits import AnyEvent, Commit, CommitWriter, Granted, accepted, read
from exahpc.batch.folds import Fold
from exahpc.batch.opened import Opened, load
from exahpc.batch.plan import INDEX, BatchPlan, Parts

ROWS = 600


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    made = Parts(tmp_path / "out.h5.parts")
    made.create()
    made.save(BatchPlan("batch_x", (), "d", ROWS, 0, 8, "m"))
    np.save(made.index, np.zeros(ROWS, INDEX))
    return made


def work(opened: Opened, seed: int, events: int = 40) -> list[AnyEvent]:
    """Rows that are leased and end out of order. Written, and the fold when it is due."""
    dice, made = random.Random(seed), list[AnyEvent]()
    for number in range(events):
        taken = opened.book.pending.first(9)
        if taken is not None and dice.random() < 0.3:
            event: AnyEvent = Granted(seed << 20 | number, f"a/{number % 3}", *taken)
        else:
            lease = dice.choice(list(opened.book.leases.values()) or [None])
            if lease is None:
                continue
            (first, last) = dice.choice(list(lease.held))
            row = dice.randrange(first, last)
            event = Commit(
                lease.lease, f"a-{number % 3}-1", number * 10 + 8, number * 10 + 18, [(row, row + 1)], []
            )
        opened.book.apply(event, 0.0)
        opened.committed.note(event)
        made.append(event)
        opened.write([event], opened.due())
    return made


def replayed(parts: Parts) -> Book:
    """From the events alone."""
    book = Book(ROWS, [])
    for _, _, event in read(parts.commits):
        book.apply(event, 0.0)
    return book


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fold every few events."""
    monkeypatch.setattr(opened, "FOLD_BYTES", 300)
    monkeypatch.setattr(opened, "_FOLD_SHARE", 0)


@pytest.mark.usefixtures("eager")
def test_a_broker_that_begins_at_a_fold_knows_what_one_that_read_everything_knows(parts: Parts) -> None:
    for epoch in range(1, 8):
        now = load(parts, "batch_x", epoch)
        assert now.book.state() == replayed(parts).state()
        assert now.writer.replayed < 30
        work(now, epoch)
        now.writer.close()
    assert len(list(parts.commits.glob("*.fold"))) == 1


@pytest.mark.usefixtures("eager")
def test_what_is_in_a_fold_is_not_read_again_but_still_counts(parts: Parts) -> None:
    first = load(parts, "batch_x", 1)
    made = work(first, 1, 90)
    second = load(parts, "batch_x", 2)
    third = load(parts, "batch_x", 3)
    assert second.writer.replayed < len(made) / 4
    assert dict(accepted(parts.commits))[1] == first.writer.end
    assert third.book.state() == second.book.state() == first.book.state()
    assert third.committed.bytes.keys() == first.committed.bytes.keys()
    for name in first.committed.bytes:
        assert third.committed.gaps(name) == first.committed.gaps(name)
    assert [event for _, _, event in read(parts.commits) if not hasattr(event, "epoch")] == made


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("damage", ["cut", "flipped", "foreign", "empty", "of another batch"])
def test_a_fold_that_cannot_be_used_is_named_and_the_events_are_read(
    parts: Parts, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = load(parts, "batch_x", 1)
    made = work(first, 1)
    (path,) = parts.commits.glob("*.fold")
    data = path.read_bytes()
    if damage == "of another batch":
        folds.write(parts.commits, Fold("batch_y", 1, first.writer.end, Book(ROWS, []).state(), {}))
    else:
        flipped = data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]
        spoilt = {"cut": data[: len(data) // 2], "flipped": flipped, "foreign": b"PK\x03\x04" * 99, "empty": b""}
        path.write_bytes(spoilt[damage])
    second = load(parts, "batch_x", 2)
    assert second.writer.replayed >= len(made)
    assert second.book.state() == first.book.state()
    assert str(path) in caplog.text


@pytest.mark.usefixtures("eager")
def test_a_fold_of_a_broker_that_was_cut_off_says_no_more_than_its_successor_accepted(parts: Parts) -> None:
    old = load(parts, "batch_x", 1)
    work(old, 1, 20)
    new = load(parts, "batch_x", 2)
    event = Granted(99, "a/9", *(old.book.pending.first(5) or (0, 0)))
    old.book.apply(event, 0.0)
    old.writer._append([event])  # had it not looked
    folds.write(parts.commits, Fold("batch_x", 1, old.writer.end, old.book.state(), {}))
    third = load(parts, "batch_x", 3)
    assert third.book.state() == new.book.state() == replayed(parts).state()
    assert 99 not in third.book.leases


def test_a_commit_journal_that_lost_its_end_is_named_and_its_rows_run_again(
    parts: Parts, caplog: pytest.LogCaptureFixture
) -> None:
    first = load(parts, "batch_x", 1)
    work(first, 1, 60)
    first.write([], first.fold())
    first.writer.close()
    path = parts.commits / "000001"
    path.write_bytes(path.read_bytes()[: first.writer.end // 2])
    second = load(parts, "batch_x", 2)
    assert second.book.state() == replayed(parts).state()
    assert second.book.ok < first.book.ok
    assert "of which" in caplog.text


def test_a_long_replay_is_folded_at_once_for_the_next_broker(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opened, "_FOLD_EVENTS", 30)
    first = load(parts, "batch_x", 1)
    made = work(first, 1, 100)
    assert not list(parts.commits.glob("*.fold"))
    assert load(parts, "batch_x", 2).writer.replayed > len(made)
    assert load(parts, "batch_x", 3).writer.replayed == 0


def test_a_fold_that_cannot_be_written_costs_only_time(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load(parts, "batch_x", 1)
    work(first, 1)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folds, "write_atomic", full)
    first.write([], first.fold())
    monkeypatch.undo()
    assert load(parts, "batch_x", 2).book.state() == first.book.state()


def test_a_fold_written_before_its_events_are_durable_would_be_refused(parts: Parts) -> None:
    writer = CommitWriter(parts.commits, 1, lambda event: None)
    folds.write(parts.commits, Fold("batch_x", 1, writer.end + 1, Book(ROWS, []).state(), {}))
    assert folds.newest(parts.commits, "batch_x", accepted(parts.commits)) is None
