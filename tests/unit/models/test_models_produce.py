"""Laws of what a copy holds: the same bytes, or the same weights in another form."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from exahpc.deployment.grid import ledger
from exahpc.deployment.shape import ModelShape
from exahpc.deployment.spec import Pool
from exahpc.errors import DeploymentError
from exahpc.models import manifest, produce
from exahpc.models.checkpoint import SCALE, Entry, Head, Wanted, look, must_convert, quantizable, read_head

LAYER = "model.layers.0.mlp.up_proj.weight"
HEAD = "lm_head.weight"
NORM = "model.norm.weight"
WIDE, HALF, INT8 = Wanted("float32"), Wanted("bfloat16"), Wanted("bfloat16", "int8")


def checkpoint(folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    """Two files of weights with their index; odd sizes, so that nothing is aligned by luck."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    one = {LAYER: torch.randn(37, 53).to(dtype), NORM: torch.randn(7)}
    two = {HEAD: torch.randn(11, 53).to(dtype), "model.steps": torch.arange(3)}
    one[LAYER][5] = 0
    save_file(one, folder / "a.safetensors")
    save_file(two, folder / "b.safetensors")
    where = {**dict.fromkeys(one, "a.safetensors"), **dict.fromkeys(two, "b.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    (folder / "config.json").write_text("{}")
    return folder


def made(folder: Path, wanted: Wanted | None, into: Path) -> Path:
    into.mkdir()
    source = look(folder)
    for name, data in produce.pieces(source, wanted):
        with (into / name).open("ab") as file:
            file.write(data)
    assert sum(f.stat().st_size for f in into.iterdir()) == produce.size(source, wanted)
    return into


def heads(folder: Path) -> list[Head]:
    return [read_head(folder / f.name) for f in look(folder).files if f.name.endswith(".safetensors")]


def test_a_plain_copy_has_the_same_bytes(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "m")
    copy = made(source, None, tmp_path / "copy")
    assert {f.name: f.read_bytes() for f in copy.iterdir()} == {f.name: f.read_bytes() for f in source.iterdir()}


def test_a_copy_holds_nothing_that_a_replica_does_not_read(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "m")
    (source / "pytorch_model.bin").write_bytes(b"x" * 1000)
    assert not (made(source, None, tmp_path / "copy") / "pytorch_model.bin").exists()


def test_matrices_are_converted_as_torch_converts_them_and_vectors_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce, "_BLOCK", 53 * 4)  # several blocks a matrix
    source = checkpoint(tmp_path / "m")
    copy = made(source, HALF, tmp_path / "copy")
    before, after = load_file(source / "a.safetensors"), load_file(copy / "a.safetensors")
    assert torch.equal(after[LAYER], before[LAYER].to(torch.bfloat16))
    assert torch.equal(after[NORM], before[NORM])
    assert torch.equal(load_file(copy / "b.safetensors")["model.steps"], torch.arange(3))
    assert not must_convert(heads(copy), HALF)


def test_int8_is_off_by_half_a_step_of_its_row_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "_BLOCK", 53 * 4)
    source = checkpoint(tmp_path / "m")
    after = load_file(made(source, INT8, tmp_path / "copy") / "a.safetensors")
    before = load_file(source / "a.safetensors")[LAYER]
    numbers, scale = after[LAYER], after[LAYER + SCALE]
    assert numbers.dtype == torch.int8
    assert scale.shape == (37,)
    assert (numbers.float().abs().amax(1)[torch.arange(37) != 5] == 127).all()
    assert ((numbers * scale[:, None] - before).abs() <= scale[:, None] * 0.5001).all()
    assert not numbers[5].any()


def test_int8_of_int8_is_the_same_file_and_needs_no_conversion(tmp_path: Path) -> None:
    once = made(checkpoint(tmp_path / "m"), INT8, tmp_path / "once")
    assert not must_convert(heads(once), INT8)
    twice = made(once, INT8, tmp_path / "twice")
    for name in ("a.safetensors", "b.safetensors"):
        assert load_file(once / name).keys() == load_file(twice / name).keys()
        assert all(torch.equal(a, load_file(twice / name)[n]) for n, a in load_file(once / name).items())


def test_int8_weights_are_not_served_as_something_else(tmp_path: Path) -> None:
    once = made(checkpoint(tmp_path / "m"), INT8, tmp_path / "once")
    with pytest.raises(DeploymentError, match=r"model\.quantization"):
        must_convert(heads(once), HALF)


@pytest.mark.parametrize(
    ("stored", "wanted", "answer"),
    [
        (torch.float32, WIDE, False),
        (torch.float32, HALF, True),
        (torch.bfloat16, HALF, False),
        (torch.bfloat16, WIDE, True),
        (torch.bfloat16, INT8, True),
    ],
)
def test_only_matrices_decide_whether_to_convert(
    tmp_path: Path, stored: torch.dtype, wanted: Wanted, answer: bool
) -> None:
    assert must_convert(heads(checkpoint(tmp_path / "m", stored)), wanted) is answer  # the norm is always float32


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("model.layers.0.self_attn.q_proj.weight", True),
        ("gpt_neox.layers.3.attention.query_key_value.weight", True),
        ("transformer.h.11.mlp.fc_in.weight", True),
        ("model.layers.0.mlp.gate_proj.weight", True),
        ("model.layers.0.mlp.gate.weight", False),
        ("model.layers.0.mlp.experts.3.w1.weight", True),
        ("model.layers.0.block_sparse_moe.gate.weight", False),
        ("model.layers.0.self_attn.q_proj.bias", False),
        ("model.embed_tokens.weight", False),
        ("lm_head.weight", False),
    ],
)
def test_int8_takes_the_plain_matrices_of_layers(name: str, answer: bool) -> None:
    assert quantizable(name, (8, 8)) is answer


def test_first_tensors_are_aligned_and_wide_numbers_come_first(tmp_path: Path) -> None:
    copy = made(checkpoint(tmp_path / "m"), INT8, tmp_path / "copy")
    head = read_head(copy / "a.safetensors")
    assert head.start % 64 == 0
    width = {"F32": 4, "BF16": 2, "I8": 1}
    assert all((head.start + e.data_offsets[0]) % width[e.dtype] == 0 for e in head.tensors.values())
    with safe_open(copy / "a.safetensors", framework="pt") as file:
        assert set(file.keys()) == {LAYER, LAYER + SCALE, NORM}


@pytest.mark.parametrize("wanted", [None, HALF])
def test_a_source_that_is_not_as_its_manifest_says_is_refused(tmp_path: Path, wanted: Wanted | None) -> None:
    source = checkpoint(tmp_path / "m")
    names = [f.name for f in look(source).files]
    (source / manifest.NAME).write_bytes(manifest.make(source, names).encode())
    made(source, wanted, tmp_path / "good")
    with (source / "b.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x55")
    with pytest.raises(DeploymentError, match=r"b\.safetensors is not as"):
        made(source, wanted, tmp_path / "bad")


def test_a_cut_file_is_named(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "m")
    file = source / "a.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DeploymentError, match=r"a\.safetensors is cut or damaged"):
        heads(source)
    file.unlink()
    with pytest.raises(DeploymentError, match=r"there is no a\.safetensors"):
        look(source)


def test_a_source_that_changes_while_it_is_read_is_told(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "m")
    reading = produce.pieces(look(source), None)
    next(reading)
    (source / "config.json").write_text('{"a": 1}')
    with pytest.raises(DeploymentError, match="was changed while it was read"):
        list(reading)


def test_a_key_names_files_and_form(tmp_path: Path) -> None:
    source = look(checkpoint(tmp_path / "m"))
    keys = {source.key(None), source.key(HALF), source.key(INT8), source.key(WIDE)}
    assert len(keys) == 4
    assert look(tmp_path / "m").key(None) in keys
    (tmp_path / "m" / "config.json").write_text('{"a": 1}')
    assert look(tmp_path / "m").key(None) not in keys


@pytest.mark.parametrize("wanted", [HALF, INT8])
def test_the_memory_ledger_counts_what_such_a_file_holds(wanted: Wanted) -> None:
    hidden, heads, kv, dim, mlp, vocabulary = 576, 9, 3, 64, 1536, 49152  # SmolLM2-135M
    shapes = {"model.embed_tokens.weight": (vocabulary, hidden), "model.norm.weight": (hidden,)}
    layer = {
        "self_attn.q_proj": (heads * dim, hidden),
        "self_attn.k_proj": (kv * dim, hidden),
        "self_attn.v_proj": (kv * dim, hidden),
        "self_attn.o_proj": (hidden, heads * dim),
        "mlp.gate_proj": (mlp, hidden),
        "mlp.up_proj": (mlp, hidden),
        "mlp.down_proj": (hidden, mlp),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    for number in range(30):
        shapes |= {f"model.layers.{number}.{name}.weight": shape for name, shape in layer.items()}
    entries = {name: Entry("BF16", shape, (0, 2 * math.prod(shape))) for name, shape in shapes.items()}
    made = produce.planned(Head(0, entries), wanted)
    shape = ModelShape(30, hidden, heads, kv, dim, mlp, vocabulary, tied=True)
    counted = ledger(shape, Pool(name="a"), 2048, wanted.dtype, wanted.quantization)
    assert counted.weights == sum(entry.size for entry in made.values())
