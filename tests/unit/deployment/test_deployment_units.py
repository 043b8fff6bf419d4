"""Sizes for people."""

from __future__ import annotations

import pytest

from exahpc.deployment.units import memory


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (5 * 2**20, "5.0 MiB"),
        (80 * 2**30, "80.0 GiB"),
        (2**42, "4.0 TiB"),
    ],
)
def test_memory_is_told_in_powers_of_1024(count: int, text: str) -> None:
    assert memory(count) == text
