"""Each family's table says rightly where Hugging Face and its checkpoints keep what a stage needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from exahpc.deployment.shape import ModelShape, family_of
from exahpc.replica.engine import body as bodies
from exahpc.replica.engine.checkpoint import Checkpoint
from exahpc.replica.engine.output import OutputLayer, matrix
from tests.families import MODELS, tiny


@pytest.fixture(scope="module", params=[name for name in MODELS if name != "falcon-7b"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("layout") / request.param
    tiny(request.param, made)
    return made


def raw(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found


def test_stages_hold_the_models_parameters_between_them(folder: Path) -> None:
    family, checkpoint = family_of(raw(folder)), Checkpoint(folder)
    seen: dict[str, torch.Tensor] = {}
    for first, last in ((0, 1), (1, 3)):
        body = bodies.build(AutoConfig.from_pretrained(folder), family, checkpoint, (first, last), torch.float32)
        for name, value in body.named_parameters():
            held = bodies.source(name, family, checkpoint, first)
            assert torch.equal(value, checkpoint[held])
            assert seen.setdefault(held, value) is value, f"{held} is on two stages"
        assert not any(tensor.is_meta for tensor in (*body.parameters(), *body.buffers()))
    heads = ("lm_head.", "embed_out.")
    assert set(seen) == {name for name in load_file(folder / "model.safetensors") if not name.startswith(heads)}


@pytest.mark.parametrize("tied", [True, False])
def test_the_output_layer_is_hugging_faces_tied_or_not(folder: Path, tied: bool, tmp_path: Path) -> None:
    config = AutoConfig.from_pretrained(folder)
    config.tie_word_embeddings = tied
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.1)
    model.save_pretrained(tmp_path)
    assert ModelShape.of(raw(tmp_path)).tied is tied
    config, family, checkpoint = (
        AutoConfig.from_pretrained(tmp_path),
        family_of(raw(tmp_path)),
        Checkpoint(tmp_path),
    )
    weight, bias = matrix(checkpoint, family, config, None)
    assert torch.equal(weight, model.get_output_embeddings().weight)
    seen: list[torch.Tensor] = []
    model.get_output_embeddings().register_forward_pre_hook(lambda _, given: seen.append(given[0][0]))
    with torch.no_grad():
        want = model(torch.arange(5)[None]).logits[0]
        got = OutputLayer(lambda x: torch.nn.functional.linear(x, weight, bias), config)(seen[0])
    torch.testing.assert_close(got, want)
