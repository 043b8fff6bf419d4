"""From the broker's answers to the results file: what is called when, and what is on disk then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

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


def test_a_batch_is_complete_on_disk_when_the_commits_name_all_its_rows(tmp_path: Path) -> None:
    prepared = begun(tmp_path)
    assert not complete(prepared)
    answer_all(prepared, {"r0"}, "first", "n")
    assert complete(prepared)
