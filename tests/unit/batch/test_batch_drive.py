"""From the broker's answers to the results file: what is called when, and what is on disk then."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exahpc.batch.client import STALE_SECONDS, Owner
from exahpc.batch.committed import Journals, Piece
from exahpc.batch.compact import compact
from exahpc.batch.journal import Record
from exahpc.batch.plan import Parts
from exahpc.batch.resultsfile import Results
from exahpc.batch.run import Prepared, Question, complete, drive, prepare
from exahpc.errors import BatchCancelled, LinkError
from exahpc.wire.messages import BatchOpen, BatchState, BatchStatus, Refused
from tests.unit.batch.test_batch_retrying import answer_all, write


def begun(folder: Path) -> Prepared:
    return prepare(write(folder / "in.jsonl", 4), folder / "out.h5")


def answers(prepared: Prepared, *states: str) -> Callable[[Question], BatchState | Refused]:
    """One after another; "away" is no answer."""
    left = list(states)

    def ask(question: Question) -> BatchState | Refused:
        state = left.pop(0)
        if state == "away":
            raise LinkError("no head")
        return BatchState(BatchStatus(prepared.plan.batch, "", 4, 3, 1, 0, state, node_hours=2.5))

    return ask


def quiet(status: BatchStatus | None) -> None:
    pass


def test_nodes_are_not_needed_any_more_before_the_results_are_written(tmp_path: Path) -> None:
    prepared = begun(tmp_path)
    there: list[bool] = []

    def over() -> None:
        there.append(prepared.output.exists())

    answer_all(prepared, {"r1"}, "first", "n")
    summary = drive(
        prepared, answers(prepared, "away", "running", "finished"), quiet, over=over, sleep=lambda _: None
    )
    assert there == [False]
    assert (summary.ok, summary.failed, summary.node_hours) == (3, 1, 2.5)
    results = Results(prepared.output)
    assert results.summary() == summary, "the file, the end and the exit code tell the same"
    results.close()


def test_a_partial_results_file_at_the_place_of_the_whole_one_costs_no_row(tmp_path: Path) -> None:
    prepared = begun(tmp_path)
    answer_all(prepared, {"r1"}, "first", "n")
    prepared.release()
    commits = sorted(prepared.parts.commits.iterdir())
    commits[-1].rename(tmp_path / "later")
    compact(prepared.parts.path, tmp_path / "part.h5", partial=True).path.rename(prepared.output)
    (tmp_path / "later").rename(commits[-1])
    assert prepare(tmp_path / "in.jsonl", prepared.output).summary is not None
    prepared.output.unlink()
    assert complete(prepare(tmp_path / "in.jsonl", prepared.output))


def test_a_cancelled_batch_needs_nobody_to_wait_and_can_be_gone_on_with(tmp_path: Path) -> None:
    prepared = begun(tmp_path)
    with pytest.raises(BatchCancelled, match="the same command goes on with it"):
        drive(prepared, answers(prepared, "running", "cancelled"), quiet, sleep=lambda _: None)
    asked: list[Question] = []

    def ask(question: Question) -> BatchState:
        asked.append(question)
        answer_all(prepared, set(), "first", "n")
        return BatchState(BatchStatus(prepared.plan.batch, "", 4, 4, 0, 0, "finished"))

    assert drive(prepared, ask, quiet, sleep=lambda _: None).ok == 4
    assert isinstance(asked[0], BatchOpen), "it is opened again"


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ENOSPC])
def test_a_file_system_that_fails_for_a_while_ends_no_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    prepared = begun(tmp_path)
    answer_all(prepared, {"r1"}, "first", "n")
    now, ill = [0.0], [False]
    real = Journals.records

    def records(journals: Journals, piece: Piece) -> Iterator[Record]:
        if ill[0]:
            raise OSError(number, os.strerror(number))
        return real(journals, piece)

    monkeypatch.setattr(Journals, "records", records)
    monkeypatch.setattr("exahpc.batch.segments.SEGMENT_BYTES", 0)

    def sleep(seconds: float) -> None:
        now[0] += 10.0
        ill[0] = now[0] < 30.0

    ill[0] = True
    states = ["running"] * 5 + ["finished"]
    assert drive(prepared, answers(prepared, *states), quiet, sleep=sleep, clock=lambda: now[0]).ok == 3
    assert len([one for one in caplog.records if "not gathered into segments" in one.getMessage()]) == 1


def test_an_owner_bears_a_file_system_that_fails_shorter_than_others_would_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, now = Parts(tmp_path / "o.parts"), [0.0]
    parts.create()
    owner = Owner(parts, lambda: now[0])

    def broken(*_: object) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as patched:
        patched.setattr(os, "utime", broken)
        now[0] = STALE_SECONDS / 2 - 1
        owner.beat()
    owner.beat()
    with monkeypatch.context() as patched:
        patched.setattr(os, "utime", broken)
        now[0] += STALE_SECONDS / 2 - 1
        owner.beat()
        now[0] += 1
        with pytest.raises(OSError, match="Stale"):
            owner.beat()


def test_a_batch_is_complete_on_disk_when_the_commits_name_all_its_rows(tmp_path: Path) -> None:
    prepared = begun(tmp_path)
    assert not complete(prepared)
    answer_all(prepared, {"r0"}, "first", "n")
    assert complete(prepared)
