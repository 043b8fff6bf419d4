"""Sizes as people write them."""

from __future__ import annotations

import pytest

from exahpc.deployment.units import size


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1024", 1024),
        ("80GB", 80 * 10**9),
        ("80 GiB", 80 * 2**30),
        ("0.5MB", 500_000),
        ("64g", 64 * 10**9),
        ("2 KiB", 2048),
        ("1TiB", 2**40),
        ("7B", 7),
    ],
)
def test_a_size_is_decimal_unless_its_unit_has_an_i(text: str, count: int) -> None:
    assert size(text) == count


@pytest.mark.parametrize("text", ["", "GB", "-1", "1e9", "80 GX", "1,5GB", "nan"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write a number of bytes"):
        size(text)
