"""The tokens of every tested architecture, on every grid, are those of Hugging Face generate."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mpi_helpers import KINDS, NEW, admit, prompts, run

GRIDS = ((1, 1), (2, 1), (1, 2), (2, 2))


def mixed(models: Path, kind: str, number: int) -> dict[str, Any]:
    """Sequences of very different lengths join while others run and leave; fewer slots than sequences."""
    chance = random.Random(number)
    wanted = [
        admit(i, ids, new, at=chance.randrange(20), batch=chance.random() < 0.5)
        for i, (ids, new) in enumerate(zip(prompts(number), NEW, strict=True))
    ]
    return {"folder": str(models / kind), "sequences": 5, "context": 1200, "chunk": 96, "admits": wanted}


def drawn(models: Path, others: bool) -> dict[str, Any]:
    """Sampled sequences: three choices, the first of them once more, and one over the whole vocabulary."""
    ids = prompts(7)
    more = {"sampling": {"temperature": 0.8, "top_p": 0.95}, "seed": 123}
    wanted = [admit(i, ids[3], 8, stream=i, at=i if others else 0, **more) for i in range(3)]
    wanted.append(admit(3, ids[3], 8, stream=0, at=0, **more))
    wanted.append(admit(4, ids[2], 8, **{**more, "sampling": {"temperature": 0.5}}))
    if others:
        wanted += [admit(10 + i, ids[i], 9, at=i % 3, batch=True) for i in range(6)]
    return {"folder": str(models / "llama"), "sequences": 8, "context": 300, "chunk": 64, "admits": wanted}


Results = Callable[[tuple[int, int]], list[dict[str, Any]]]


@pytest.fixture(scope="session")
def results(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """grid -> what its one start of the ranks gave for all cases."""

    @functools.cache
    def of(grid: tuple[int, int]) -> list[dict[str, Any]]:
        cases = [mixed(models, kind, number) for number, kind in enumerate(KINDS)]
        cases += [drawn(models, others=False), drawn(models, others=True)]
        return run(*grid, cases, tmp_path_factory.mktemp("grid"))

    return of


@pytest.mark.case("B18", "B19", "B21")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("grid", GRIDS, ids=lambda g: f"{g[0]}x{g[1]}")
def test_greedy_tokens_are_those_of_hugging_face(
    grid: tuple[int, int], kind: str, results: Results, reference: dict[str, list[list[int]]]
) -> None:
    got = results(grid)[KINDS.index(kind)]
    assert [got[str(i)][0] for i in range(len(NEW))] == reference[kind]
    assert {reason for _, reason in got.values()} == {"length"}


@pytest.mark.case("B34")
@pytest.mark.parametrize("grid", GRIDS, ids=lambda g: f"{g[0]}x{g[1]}")
def test_a_seed_gives_the_same_text_on_every_grid_and_in_every_batch(
    grid: tuple[int, int], results: Results
) -> None:
    alone, among = results(grid)[len(KINDS) :]
    first = results((1, 1))[len(KINDS)]
    for name in map(str, range(5)):
        assert alone[name] == among[name] == first[name]
    assert alone["0"] == alone["3"]
    assert len({tuple(alone[n][0]) for n in "012"}) == 3
