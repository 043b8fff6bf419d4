"""Growing logs are told piece by piece, each byte once."""

from __future__ import annotations

from pathlib import Path

from exahpc.launch.tail import Follower


def test_the_last_lines_come_first_and_then_only_what_is_new(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_text("1\n2\n3\n")
    follower = Follower(tmp_path, 2)
    assert list(follower.news([file])) == [(file, "2\n3\n")]
    assert list(follower.news([file])) == []
    with file.open("a") as out:
        out.write("4\n5")
    assert list(follower.news([file])) == [(file, "4\n5")]


def test_a_file_that_was_cut_is_told_from_its_start(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_text("long line\n")
    follower = Follower(tmp_path, 5)
    list(follower.news([file]))
    file.write_text("new\n")
    assert list(follower.news([file])) == [(file, "new\n")]


def test_a_vanished_file_is_no_error(tmp_path: Path) -> None:
    assert list(Follower(tmp_path, 5).news([tmp_path / "gone.log"])) == []


def test_zero_lines_show_only_what_comes(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_text("old\n")
    follower = Follower(tmp_path, 0)
    assert list(follower.news([file])) == []
    file.write_text("old\nnew\n")
    assert list(follower.news([file])) == [(file, "new\n")]
