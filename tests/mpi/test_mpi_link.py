"""Every StageLink keeps the same contract; the laws are in link_program.py."""

from __future__ import annotations

import pytest
from mpi_helpers import result

LINKS = ("host", "device", "host int8", "device int8")


@pytest.fixture(scope="module")
def judged() -> dict[str, dict[str, bool]]:
    found: dict[str, dict[str, bool]] = result(2, "link_program.py")
    return found


@pytest.mark.parametrize("link", LINKS)
def test_a_link_keeps_the_contract(link: str, judged: dict[str, dict[str, bool]]) -> None:
    assert len(judged[link]) >= 4
    assert [law for law, kept in judged[link].items() if not kept] == []
