"""The job book names every job of a deployment for as long as it may matter."""

from __future__ import annotations

from pathlib import Path

from exahpc.slurm.jobbook import JobBook

BOOK = JobBook("1", {"a": ["2", "5", "6"], "b": ["3"]}, {"a/0": ["8_0", "9_0"], "a/1": ["10_1"]})


def test_all_jobs_are_named_once_the_head_first() -> None:
    assert BOOK.jobs == ["1", "2", "5", "6", "3", "8", "9", "10"]
    assert JobBook(None, {}).jobs == []


def test_an_array_is_noted_once() -> None:
    assert BOOK.noting("a", "7").pools["a"] == ["2", "5", "6", "7"]
    assert BOOK.noting("c", "7").pools["c"] == ["7"]
    assert BOOK.noting("a", "5") is BOOK


def test_arrays_that_are_over_leave_but_the_first_of_a_pool_stays() -> None:
    assert BOOK.without({"2", "5", "3"}).pools == {"a": ["2", "6"], "b": ["3"]}


def test_a_book_survives_its_file_and_an_older_one_is_read(tmp_path: Path) -> None:
    BOOK.save(tmp_path)
    assert JobBook.load(tmp_path) == BOOK
    (tmp_path / "slurm" / "jobs.json").write_text('{"head": null, "pools": {"a": ["2"]}}')
    assert JobBook.load(tmp_path) == JobBook(None, {"a": ["2"]})
