"""Files in /dev/shm that several ranks have mapped, and all unlink."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from exahpc.replica import shm

MAPS = """\
7f0000000000-7f0000001000 rw-s 00000000 00:19 12 /dev/shm/vader_segment.n1.0.1.0
7f0000001000-7f0000002000 rw-s 00001000 00:19 12 /dev/shm/vader_segment.n1.0.1.0
7f0000002000-7f0000003000 rw-s 00000000 00:19 13 /dev/shm/vader_segment.n1.0.1.1 (deleted)
7f0000003000-7f0000004000 r-xp 00000000 08:01 14 /usr/lib/libc.so.6
7f0000004000-7f0000005000 rw-p 00000000 00:00 0
"""


def test_files_that_have_a_name_still_are_found_once() -> None:
    assert shm.mapped(MAPS) == {"/dev/shm/vader_segment.n1.0.1.0"}


def test_ranks_that_unlink_the_same_files_at_once_do_not_mind_each_other(tmp_path: Path) -> None:
    names = [str(tmp_path / f"segment.{number}") for number in range(300)]
    for name in names:
        Path(name).touch()
    ranks = 4
    together = Barrier(ranks)

    def rank() -> None:
        together.wait()
        shm.unlink(names)

    with ThreadPoolExecutor(ranks) as pool:
        for done in [pool.submit(rank) for _ in range(ranks)]:
            done.result()
    assert not list(tmp_path.iterdir())


def test_files_of_somebody_else_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "segment"
    file.touch()
    monkeypatch.setattr(os, "getuid", lambda: file.stat().st_uid + 1)
    shm.unlink([str(file)])
    assert file.exists()
