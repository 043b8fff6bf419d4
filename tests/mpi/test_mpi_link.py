"""Every StageLink keeps the same contract; the laws are in link_program.py."""

from __future__ import annotations

import json

import pytest
from mpi_helpers import HERE, ranks

LINKS = ("host", "device", "host int8", "device int8")


@pytest.fixture(scope="module")
def judged() -> dict[str, dict[str, bool]]:
    done = ranks(2, HERE / "link_program.py")
    assert done.returncode == 0, done.stdout + done.stderr
    line = next(x for x in done.stdout.splitlines() if x.startswith("RESULT "))
    found: dict[str, dict[str, bool]] = json.loads(line.removeprefix("RESULT "))
    return found


@pytest.mark.parametrize("link", LINKS)
def test_a_link_keeps_the_contract(link: str, judged: dict[str, dict[str, bool]]) -> None:
    assert len(judged[link]) >= 4
    assert [law for law, kept in judged[link].items() if not kept] == []
