"""A time limit is read as Slurm reads it."""

from __future__ import annotations

import pytest

from exahpc.slurm.timelimit import seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", 5400),
        ("90:30", 5430),
        ("1:30:30", 5430),
        ("2-3", 183_600),
        ("2-3:30", 185_400),
        ("2-03:30:30", 185_430),
        ("0", 0),
        ("UNLIMITED", None),
        ("infinite", None),
        ("", None),
        ("-1", None),
        ("1-", None),
        ("tomorrow", None),
    ],
)
def test_every_form_means_what_slurm_says(text: str, expected: float | None) -> None:
    assert seconds(text) == expected
