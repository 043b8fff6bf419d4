"""INT8 weights on a grid: the tokens are those of Hugging Face with the same rounded weights."""

from __future__ import annotations

from pathlib import Path

from mpi_helpers import admit, generate, prompts, run
from safetensors.torch import load_file, save_file

from exahpc.models.checkpoint import SCALE, Wanted
from exahpc.models.prepared import prepare
from tests.families import tiny

MODELS = ("llama", "qwen2", "mixtral")
"""The fast decoder without and with biases and a tied table; Hugging Face's forward, with experts."""
NEW, CHOSEN = 8, (1, 3, 4, 10)


def rounded(source: Path, int8: Path, into: Path) -> Path:
    """The checkpoint `source` with the numbers that `int8` stands for."""
    into.mkdir()
    weights = load_file(int8 / "model.safetensors")
    plain = {name: weight for name, weight in weights.items() if not name.endswith(SCALE)}
    for name in plain:
        if name + SCALE in weights:
            plain[name] = weights[name].float() * weights[name + SCALE][:, None]
    save_file(plain, into / "model.safetensors", metadata={"format": "pt"})
    (into / "config.json").write_text((source / "config.json").read_text())
    return into


def test_shards_of_int8_matrices_are_multiplied_with_the_scales_of_their_rows(tmp_path: Path) -> None:
    """Two ranks share three key/value heads: rows and columns are split unevenly."""
    cases, wanted = [], {}
    for name in MODELS:
        tiny(name, tmp_path / name)
        prepare(tmp_path / name, tmp_path / f"{name}-int8", Wanted("float32", "int8"), lambda _: None)
        asked = [(prompts(3)[n], NEW) for n in CHOSEN]
        wanted[name] = generate(
            rounded(tmp_path / name, tmp_path / f"{name}-int8", tmp_path / f"{name}-hf"), asked
        )
        admits = [admit(i, ids, new, at=i) for i, (ids, new) in enumerate(asked)]
        folder = str(tmp_path / f"{name}-int8")
        cases.append({"folder": folder, "sequences": 5, "context": 1200, "chunk": 96, "admits": admits})
    got = run(2, 1, cases, tmp_path)
    for name, one in zip(MODELS, got, strict=True):
        assert [one[str(i)][0] for i in range(len(CHOSEN))] == wanted[name], name
