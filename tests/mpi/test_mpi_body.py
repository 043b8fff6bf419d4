"""How decoders lie in memory: weights stay the mapped file, ranks share the matrices, positions stay exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mpi_helpers import KINDS, result


@pytest.fixture(scope="module")
def found(models: Path) -> dict[str, Any]:
    names = [name for name in KINDS if name != "falcon-7b"]
    found: dict[str, Any] = result(2, "body_program.py", *(models / name for name in names))
    assert list(found) == names
    return found


def test_every_weight_is_a_view_of_the_mapped_checkpoint(found: dict[str, Any]) -> None:
    assert {name: one["private"] for name, one in found.items() if one["private"]} == {}


def test_a_rank_holds_its_share_of_the_layers_experts_included(found: dict[str, Any]) -> None:
    for name, one in found.items():  # 2 of 3 key/value heads, half of most MLPs
        assert 0.45 < one["share"] < 0.68, name


def test_positions_are_exact_whatever_the_weights_format(found: dict[str, Any]) -> None:
    """DeepSpeed casts a model's buffers, too: rope frequencies in bfloat16 turn far positions by wrong angles."""
    assert {name for name, one in found.items() if one["error"] > 0} <= {"gemma3"}
    assert found["gemma3"]["error"] < 0.03  # the factor of its embedding is in the weights' format by design
