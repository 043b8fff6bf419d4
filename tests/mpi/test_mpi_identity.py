"""The tokens of every tested architecture, on every grid, are those of Hugging Face generate."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mpi_helpers import KINDS, admit, prompts, run, wanted

from exahpc.deployment.families import FAMILIES
from tests.families import MODELS

GRIDS = ((1, 1), (2, 1), (1, 2), (2, 2))
FALCON_7B = "falcon-7b"  # one key/value head for all: not split


def runs_on(name: str, grid: tuple[int, int]) -> bool:
    return name != FALCON_7B or grid[0] == 1


def is_long(name: str, grid: tuple[int, int]) -> bool:
    """`make test` has each model on one processor and on one grid, and Llama on all."""
    return grid != (1, 1) and name != "llama" and GRIDS[1 + KINDS.index(name) % 3] != grid


def mixed(models: Path, name: str) -> dict[str, Any]:
    """Sequences of very different lengths join while others run and leave; fewer slots than sequences."""
    chance = random.Random(KINDS.index(name))
    admits = [
        admit(i, ids, new, at=chance.randrange(20), batch=chance.random() < 0.5)
        for i, (ids, new) in enumerate(wanted(name))
    ]
    return {"folder": str(models / name), "sequences": 5, "context": 1200, "chunk": 96, "admits": admits}


def tight(models: Path) -> dict[str, Any]:
    """Batch rows run when two online sequences come that leave them no room: they give way and go on later."""
    case = mixed(models, "llama")
    for one in case["admits"]:
        online = one["sequence"] in (7, 8)
        one |= {"at": 6 if online else one["sequence"] % 3, "batch": not online}
    return {**case, "chunk": 32, "tokens": 1136}


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


Results = Callable[[tuple[int, int], bool], dict[str, dict[str, Any]]]


@pytest.fixture(scope="session")
def results(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """(grid, long) -> what one start of the ranks gave for all its models."""

    @functools.cache
    def of(grid: tuple[int, int], long: bool) -> dict[str, dict[str, Any]]:
        names = [name for name in KINDS if runs_on(name, grid) and is_long(name, grid) == long]
        cases = {name: mixed(models, name) for name in names}
        if not long:
            cases |= {"alone": drawn(models, others=False), "among": drawn(models, others=True)}
            cases["tight"] = tight(models)
        found = run(*grid, list(cases.values()), tmp_path_factory.mktemp("grid"))
        return dict(zip(cases, found, strict=True))

    return of


@pytest.mark.case("B18", "B19", "B21")
@pytest.mark.parametrize(
    ("grid", "name"),
    [
        pytest.param(
            grid, name, id=f"{grid[0]}x{grid[1]}-{name}", marks=[pytest.mark.long] if is_long(name, grid) else []
        )
        for grid in GRIDS
        for name in KINDS
        if runs_on(name, grid)
    ],
)
def test_greedy_tokens_are_those_of_hugging_face(
    grid: tuple[int, int], name: str, results: Results, reference: dict[str, list[list[int]]]
) -> None:
    got = results(grid, is_long(name, grid))[name]
    assert [got[str(i)][0] for i in range(len(reference[name]))] == reference[name]
    assert {reason for _, reason in got.values()} == {"length"}


@pytest.mark.parametrize("grid", GRIDS, ids=lambda g: f"{g[0]}x{g[1]}")
def test_who_gave_way_goes_on_with_the_same_tokens(
    grid: tuple[int, int], results: Results, reference: dict[str, list[list[int]]]
) -> None:
    got = results(grid, False)["tight"]
    assert [got[str(i)][0] for i in range(len(reference["llama"]))] == reference["llama"]


def test_references_wander(reference: dict[str, list[list[int]]]) -> None:
    """A model that repeats itself would hide a wrong cache or position."""
    for name, answers in reference.items():
        long = [answer for answer in answers if len(answer) > 5]
        assert sum(len(set(answer)) > 3 for answer in long) >= len(long) - 2, name


def test_every_family_has_its_model() -> None:
    assert {kind for kind, _ in MODELS.values()} == set(FAMILIES)


@pytest.mark.case("B34")
@pytest.mark.parametrize("grid", GRIDS, ids=lambda g: f"{g[0]}x{g[1]}")
def test_a_seed_gives_the_same_text_on_every_grid_and_in_every_batch(
    grid: tuple[int, int], results: Results
) -> None:
    here, first = results(grid, False), results((1, 1), False)
    alone, among = here["alone"], here["among"]
    for name in map(str, range(5)):
        assert alone[name] == among[name] == first["alone"][name]
    assert alone["0"] == alone["3"]
    assert len({tuple(alone[n][0]) for n in "012"}) == 3
