"""Laws of mapped checkpoints: nothing is copied, and a part of an INT8 matrix finds its scales."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from exahpc.models.prepared import prepare
from exahpc.replica.engine.checkpoint import Checkpoint
from exahpc.replica.engine.linear import weight_of
from exahpc.replica.engine.native.api import FORMATS, INT8_OF_BFLOAT16
from tests.unit.models.test_models_produce import HEAD, INT8, LAYER, checkpoint


@pytest.fixture
def int8(tmp_path: Path) -> Checkpoint:
    prepare(checkpoint(tmp_path / "m"), tmp_path / "int8", INT8, lambda _: None)
    return Checkpoint(tmp_path / "int8")


def test_every_part_of_an_int8_matrix_has_the_scales_of_its_rows(int8: Checkpoint) -> None:
    whole = int8[LAYER]
    scales = int8.scales(whole)
    assert scales is not None
    assert scales.shape == (37,)
    for rows in whole.split([12, 25], 0):  # as AutoTP splits columns of the input or rows of the output, unevenly
        found = int8.scales(rows)
        first = rows.storage_offset() - whole.storage_offset()
        assert found is not None
        assert torch.equal(found, scales[first // 53 :][: len(rows)])
    for columns in whole.split([20, 33], 1):
        found = int8.scales(columns)
        assert found is not None
        assert torch.equal(found, scales)


def test_an_int8_matrix_knows_its_scales_and_the_models_number_format(int8: Checkpoint) -> None:
    """Inputs may be rounded to bfloat16 in a bfloat16 model, and never in a float32 one."""
    formats = {torch.float32: FORMATS[torch.int8], torch.bfloat16: INT8_OF_BFLOAT16}
    for dtype, wanted in formats.items():
        module = torch.nn.Linear(53, 37, bias=False)
        module.weight = torch.nn.Parameter(int8[LAYER], requires_grad=False)
        int8.give_scales(torch.nn.ModuleList([module]), dtype)
        found = weight_of(module)
        assert found.format == wanted
        assert found.scale is not None
        assert torch.equal(found.scale, int8.scales(int8[LAYER]))


def test_what_is_no_int8_matrix_has_no_scales(int8: Checkpoint) -> None:
    int8[LAYER]
    assert int8.scales(int8[HEAD]) is None
    assert int8.scales(int8[LAYER].clone()) is None


def test_weights_are_views_of_the_file(int8: Checkpoint) -> None:
    address = int8[LAYER].data_ptr()
    with open("/proc/self/maps") as maps:
        lines = [line for line in maps if "safetensors" in line]
    spans = [tuple(int(x, 16) for x in line.split()[0].split("-")) for line in lines]
    assert any(first <= address < last for first, last in spans)
