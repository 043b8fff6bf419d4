"""What can be refused is refused before anything starts, with key, value and remedy."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from pathlib import Path

import msgspec
import pytest

from exahpc.deployment import parse
from exahpc.deployment.spec import Deployment
from exahpc.errors import DeploymentError
from exahpc.launch import place, prepare
from tests.tiny import make_tokenizer

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "vocab_size": 256,
    "max_position_embeddings": 4096,
}

HEADER = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
WEIGHTS = len(HEADER).to_bytes(8, "little") + HEADER + bytes(8)


def write(folder: Path, text: str = "", **model: object) -> Path:
    made = folder / "m"
    made.mkdir(exist_ok=True)
    (made / "config.json").write_text(json.dumps({**CONFIG, **model}))
    make_tokenizer(made)
    (made / "model.safetensors").write_bytes(WEIGHTS)
    file = folder / "d.toml"
    file.write_text(
        f'name = "d"\nmodel.path = "m"\n[[pool]]\nname = "a"\n{text}\n'
        '[launcher]\nkind = "local"\nmpirun = "true"\n'
    )
    return file


def test_relative_paths_count_from_the_file(tmp_path: Path) -> None:
    found = prepare.read(write(tmp_path))
    assert found.model.path == str(tmp_path / "m")
    assert found.launcher.python == sys.executable


def test_home_and_variables_are_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MODELS", "/models")
    file = tmp_path / "d.toml"
    for written, meant in (("~/x", f"{tmp_path}/x"), ("$MODELS/x", "/models/x")):
        file.write_text(f'name="d"\nmodel.path="{written}"\n[[pool]]\nname="a"')
        assert prepare.read(file).model.path == meant


def test_another_name_is_held_to_the_same_rule(tmp_path: Path) -> None:
    assert prepare.read(write(tmp_path), "other").name == "other"
    with pytest.raises(DeploymentError, match=r"--name: 1 problem\n  name = \"\.\./x\""):
        prepare.read(write(tmp_path), "../x")


def test_a_good_model_gives_each_pools_ledger(tmp_path: Path) -> None:
    found = prepare.check_model(prepare.read(write(tmp_path)))
    assert found["a"].weights > 0


@pytest.mark.parametrize(
    ("remove", "says"),
    [
        ("config.json", "holds no config.json"),
        ("model.safetensors", r"holds no \.safetensors"),
        ("tokenizer.json", r"holds no tokenizer\.json"),
    ],
)
def test_a_folder_that_is_no_checkpoint_is_named(tmp_path: Path, remove: str, says: str) -> None:
    file = write(tmp_path)
    (tmp_path / "m" / remove).unlink()
    with pytest.raises(DeploymentError, match=says):
        prepare.check_model(prepare.read(file))


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    file = tmp_path / "d.toml"
    file.write_text('name="d"\nmodel.path="/nowhere/m"\n[[pool]]\nname="a"')
    with pytest.raises(DeploymentError, match=r"model\.path = '/nowhere/m': there is no such folder"):
        prepare.check_model(prepare.read(file))


def test_an_untested_architecture_is_refused_with_the_list(tmp_path: Path) -> None:
    with pytest.raises(DeploymentError, match=r"gpt2.*llama"):
        prepare.check_model(prepare.read(write(tmp_path, model_type="gpt2")))


def test_a_grid_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeploymentError, match="tensor_parallel = 4"):
        prepare.check_model(prepare.read(write(tmp_path, "tensor_parallel = 4")))


def test_a_missing_mpi_starter_is_named(tmp_path: Path) -> None:
    file = write(tmp_path)
    file.write_text(file.read_text().replace('"true"', '"no-such-mpirun"'))
    with pytest.raises(DeploymentError, match=r"launcher\.mpirun = 'no-such-mpirun'"):
        prepare.check_programs(prepare.read(file))


def test_slurm_without_sbatch_is_refused_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path)
    file.write_text(file.read_text().replace('"local"', '"slurm"'))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeploymentError, match=r'no sbatch here.*kind = "local"'):
        prepare.check_programs(prepare.read(file))


def test_the_folder_keeps_its_secrets_private_and_its_key_for_good(tmp_path: Path) -> None:
    deployment = prepare.read(write(tmp_path))
    folder, key = prepare.create(tmp_path / "home" / "d", deployment)
    assert key is not None
    assert key.startswith("sk-")
    assert list(folder.api_keys()) == [key]
    assert parse.load(folder.toml) == deployment
    for path in (folder.path / "secrets").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE((folder.path).stat().st_mode) == 0o700
    again, nothing = prepare.create(tmp_path / "home" / "d", deployment)
    assert nothing is None
    assert list(again.api_keys()) == [key]


def test_a_deployment_is_found_by_name_or_path_and_a_wrong_name_gets_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXAHPC_HOME", str(tmp_path / "home"))
    prepare.create(
        tmp_path / "home" / "laptop",
        prepare.read(
            write(tmp_path),
        ),
    )
    assert place.folder_of("laptop").path == place.folder_of(str(tmp_path / "home" / "laptop")).path
    with pytest.raises(DeploymentError, match='did you mean "laptop"'):
        place.folder_of("lapptop")
    assert place.names() == ["laptop"]


@pytest.mark.parametrize(
    "damage",
    [b"", WEIGHTS[:5], WEIGHTS[:20], WEIGHTS[:-1], WEIGHTS + b"x", b"\xff" * 64, b"\x02" + bytes(7) + b"[]"],
)
def test_half_copied_weights_are_told_before_a_node_is_asked_for(tmp_path: Path, damage: bytes) -> None:
    file = write(tmp_path)
    (tmp_path / "m" / "model.safetensors").write_bytes(damage)
    with pytest.raises(DeploymentError, match=r"model\.safetensors is cut or damaged; copy it again"):
        prepare.check_model(prepare.read(file))


def test_a_half_copied_tokenizer_is_told_before_anything_starts(tmp_path: Path) -> None:
    file = write(tmp_path)
    whole = (tmp_path / "m" / "tokenizer.json").read_bytes()
    (tmp_path / "m" / "tokenizer.json").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DeploymentError, match=r"^model\.path = .*/m/tokenizer\.json: no tokenizer: .*: mend"):
        prepare.check_model(prepare.read(file))


@pytest.mark.parametrize("name", ["chat_template.jinja", "chat_template.json", "tokenizer_config.json"])
def test_a_chat_template_that_does_not_compile_is_told_with_its_file(tmp_path: Path, name: str) -> None:
    file, template = write(tmp_path), "{% for m in messages %}"
    text = template if name.endswith(".jinja") else json.dumps({"chat_template": template})
    (tmp_path / "m" / name).write_text(text)
    with pytest.raises(DeploymentError, match=rf"{name}: the model's chat template does not compile: .*: mend"):
        prepare.check_model(prepare.read(file))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("chat_template.jinja", b"\xff"),
        ("tokenizer_config.json", b"{"),
        ("tokenizer_config.json", b'{"chat_template": [3]}'),
    ],
)
def test_any_damage_beside_the_tokenizer_is_one_error_for_users(tmp_path: Path, name: str, data: bytes) -> None:
    file = write(tmp_path)
    (tmp_path / "m" / name).write_bytes(data)
    with pytest.raises(DeploymentError, match=r"^model\.path = .*: (mend|copy)"):
        prepare.check_model(prepare.read(file))


@pytest.mark.parametrize("key", ["launcher", "head"])
def test_an_interface_that_this_machine_lacks_is_named(tmp_path: Path, key: str) -> None:
    file = write(tmp_path)
    if key == "head":
        file.write_text(file.read_text() + "[head]\n")
    file.write_text(file.read_text() + 'interface = "nope0"\n')
    with pytest.raises(DeploymentError, match=rf"{key}\.interface = 'nope0' has no .* lo.*: name one with an"):
        prepare.check_programs(prepare.read(file))


def test_an_interface_of_this_machine_passes(tmp_path: Path) -> None:
    file = write(tmp_path)
    file.write_text(file.read_text() + 'interface = "lo"\n')
    prepare.check_programs(prepare.read(file))


def test_the_nodes_interface_need_not_be_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path)
    file.write_text(file.read_text().replace('"local"', '"slurm"') + 'interface = "hsn0"\n')
    monkeypatch.setattr("shutil.which", lambda name, path=None: f"/bin/{name}")
    prepare.check_programs(prepare.read(file))


def staged(folder: Path, stage: str, kind: str = "local") -> Deployment:
    file = write(folder)
    text = file.read_text().replace('model.path = "m"', f'model.path = "m"\nmodel.stage = "{stage}"')
    file.write_text(text.replace('"local"', f'"{kind}"'))
    return prepare.read(file)


@pytest.mark.parametrize(
    ("stage", "says"),
    [
        ("{}/none", "has no directory '.*/none': make it, or name another"),
        ("{}/d.toml", "has no directory"),
        ("{}/locked", "cannot be written: name another"),
        ("$NOT_SET_HERE", "'NOT_SET_HERE' is not set on this node: set it, or name"),
        ("$RELATIVE", "has no directory 'm'"),
    ],
)
def test_a_stage_that_this_machine_cannot_use_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, says: str
) -> None:
    monkeypatch.setenv("RELATIVE", "m")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "locked").mkdir()
    real = os.access  # root may write anywhere
    monkeypatch.setattr("os.access", lambda path, mode: real(path, mode) and Path(path).name != "locked")
    stage = stage.format(tmp_path)
    with pytest.raises(DeploymentError, match=rf"^model\.stage = '{re.escape(stage)}': .*{says}"):
        prepare.check_stage(staged(tmp_path, stage))
    prepare.check_stage(staged(tmp_path, stage, "slurm"))  # nodes may have it
    prepare.check_stage(staged(tmp_path, str(tmp_path)))


@pytest.mark.parametrize("stage", ["", "scratch", "$", "${TMPDIR", "/x/$"])
def test_a_stage_that_no_node_can_expand_is_refused(tmp_path: Path, stage: str) -> None:
    with pytest.raises(DeploymentError, match=r'model\.stage = ".*": name a directory of each node'):
        staged(tmp_path, stage, "slurm")


FLOATS = [
    f"{table.encode_name}.{field.encode_name}"
    for table in msgspec.structs.fields(Deployment)
    if isinstance(table.type, type) and issubclass(table.type, msgspec.Struct)
    for field in msgspec.structs.fields(table.type)
    if field.type in (float, float | None)
]


@pytest.mark.parametrize("key", FLOATS)
@pytest.mark.parametrize("value", ["inf", "-inf", "nan"])
def test_every_number_is_finite(tmp_path: Path, key: str, value: str) -> None:
    table, name = key.split(".")
    file = write(tmp_path)
    file.write_text(f"{file.read_text()}[{table}]\n{name} = {value}\n")
    with pytest.raises(DeploymentError, match=rf": 1 problem\n  {key} = -?(Infinity|NaN): must be "):
        prepare.read(file)
