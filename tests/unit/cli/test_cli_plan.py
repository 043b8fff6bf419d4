"""`exahpc plan`: one command from a model to nodes, back, and to a deployment file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from exahpc.cli import main
from exahpc.deployment.known_models import KNOWN
from exahpc.deployment.parse import load

JOBS = Path(__file__).parents[3] / "jobs"
H100 = ("--accelerator", "h100-80")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXAHPC_HOME", str(tmp_path / "home"))


def run(*argv: str | Path) -> Result:
    return CliRunner().invoke(main, ["plan", *map(str, argv)])


def data(*argv: str | Path) -> dict[str, Any]:
    done = run(*argv, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "Mine-8B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(dict(KNOWN["llama-3.1-8b"])))
    return folder


def test_folder_file_and_name_of_a_model_give_the_same_plan(checkpoint: Path) -> None:
    plans = [data(model, *H100) for model in (checkpoint, checkpoint / "config.json", "Llama-3.1-8B-Instruct")]
    assert plans[0]["rank"] == plans[1]["rank"] == plans[2]["rank"]
    assert plans[0]["grids"] == plans[2]["grids"]


def test_the_example_of_the_documentation_and_its_sbatch_lines() -> None:
    done = run("llama-3.1-70b", *H100, "--context", "8192", "--concurrency", "5000")
    assert done.exit_code == 0, done.output
    for word in ("weights", "KV cache", "reserve", "free", "TP 4 x PP 1", "16x1", "sbatch --parsable"):
        assert word in done.output
    told = data("llama-3.1-70b", *H100, "--context", "8192", "--concurrency", "5000")
    assert f"--array={told['fleet']['array']}" in told["commands"][-1]
    assert told["fleet"]["nodes"] * told["replica"]["replicas_per_node"] >= told["fleet"]["replicas"]


def test_5000_at_once_on_nodes_of_twelve_need_68() -> None:
    file, shape = JOBS / "many-nodes.toml", ("--accelerator", "pvc-tile", "--tokens", "2048")
    there = data(file, *shape, "--concurrency", "5000")
    assert (there["replica"]["sequences"], there["fleet"]["replicas"], there["fleet"]["nodes"]) == (8, 813, 68)
    assert "--array=0-67" in there["commands"][-1]
    assert data(file, *shape, "--nodes", "68")["fleet"]["concurrency"] == 5021
    assert data(file, *shape)["fleet"]["nodes"] == 256  # as the file says


def test_a_given_kv_size_replaces_the_models() -> None:
    shape = ("llama-2-70b", "--quantization", "int8", "--context", "2000", "--tensor-parallel", "1")
    card = ("--memory", "80GB", "--per-node", "1", "--reserve", "0")
    half = data(*shape, *card, "--kv-bytes-per-token", "0.5MB")
    assert half["kv_bytes_per_token"] == 500_000
    assert 7 <= half["kv_room_tokens"] // 2000 <= 9
    assert half["kv_room_tokens"] * 500_000 < 10e9
    assert data(*shape, *card)["kv_bytes_per_token"] == 320 * 1024


def test_one_command_from_a_models_folder_to_a_deployment_file(checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "jobs" / "mine.toml"
    done = run(checkpoint, *H100, "--concurrency", "100", "--write", file)
    assert done.exit_code == 0, done.output
    found = load(file.read_text())
    assert (found.name, found.model.path, found.slurm.gpus_per_node) == ("mine", str(checkpoint), "4")
    pool = found.pool[0]
    assert (pool.replicas, pool.replicas_per_task, pool.kv_tokens) == (9, 4, 16 * 4096)
    again = data(file, *H100)
    assert again["replica"]["sequences"] == pool.max_sequences == 16
    before = file.read_text()
    done = run(checkpoint, *H100, "--write", file)
    assert (done.exit_code, file.read_text()) == (2, before)


def test_a_model_that_is_not_served_is_planned_for_but_not_written(tmp_path: Path) -> None:
    assert "not served" in run("gemma-2-9b", *H100).output
    assert data("gemma-2-9b", *H100)["model"]["served"] is False
    done = run("gemma-2-9b", *H100, "--write", tmp_path / "a.toml")
    assert (done.exit_code, (tmp_path / "a.toml").exists()) == (2, False)


def test_this_machine_is_planned_for_without_an_accelerator(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "config.json").write_text(json.dumps(dict(KNOWN["smollm2-135m"])))
    text = f'name = "a"\nmodel.path = "{checkpoint}"\n[launcher]\nkind = "local"\n[[pool]]\nname = "cpu"\n'
    (tmp_path / "a.toml").write_text(text + "replicas = 2\nreplicas_per_task = 2\n")
    found = data(tmp_path / "a.toml", "--memory", "8GiB")
    assert (found["device"]["per_node"], found["commands"]) == (2, [])


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("nobody", *H100), "no known model (`exahpc plan --list` names them), and no such file or folder"),
        (("llama-3.1-8b",), "Give --accelerator (v100-32"),
        (("llama-3.1-8b", "--memory", "80GB"), "add --per-node"),
        (("llama-3.1-8b", "--memory", "lots"), "write a number of bytes with a unit"),
        (("llama-3.1-8b", *H100, "--tokens", "5000"), "--tokens = 5000: a sequence has 1 to 4096 tokens"),
        (("llama-2-7b", *H100, "--context", "5000"), "set model.context to at most 4096"),
        (("llama-3.1-8b", *H100, "--nodes", "2", "--concurrency", "3"), "one follows from the other"),
        (("llama-3.1-8b", *H100, "--tensor-parallel", "8"), "stays in a node of 4: tensor_parallel at most 4"),
        (("llama-3.1-405b", "--memory", "8GB", "--per-node", "1"), "no grid works"),
        (("llama-3.1-8b", *H100, "--memory", "0"), "no grid works"),
        (("llama-3.1-8b", *H100, "--kv-bytes-per-token", "0"), "--kv-bytes-per-token = 0"),
        (("llama-3.1-405b", *H100, "--nodes", "1", "--context", "1024"), "--nodes = 1: one replica spans"),
        ((JOBS / "many-nodes.toml", *H100, "--tensor-parallel", "2"), "the grid is the file's"),
        ((JOBS / "many-nodes.toml", *H100, "--pool", "x"), "--pool = 'x': the file has main"),
        ((JOBS / "many-nodes.toml", "--memory", "16GB"), "before any KV cache"),
        ((JOBS / "many-nodes.toml", "--memory", "20.5GB"), "set kv_tokens to at most"),
        ((JOBS / "many-nodes.toml", *H100, "--per-node", "4"), "replicas_per_task = 12 of 1 ranks needs 12"),
    ],
)
def test_a_mistake_names_the_value_and_the_remedy(argv: tuple[str | Path, ...], says: str) -> None:
    done = run(*argv)
    assert done.exit_code == 2
    assert says in " ".join(done.output.split())


def test_the_list_names_models_and_accelerators() -> None:
    done = run("--list")
    assert done.exit_code == 0
    assert "llama-3.1-405b" in done.output
    assert "pvc-tile" in done.output


def test_a_context_beyond_the_files_cache_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    text = f'name = "a"\nmodel.path = "{checkpoint}"\n[[pool]]\nname = "main"\nkv_tokens = 2048\n'
    (tmp_path / "a.toml").write_text(text)
    done = run(tmp_path / "a.toml", *H100, "--context", "4096")
    assert (done.exit_code, "kv_tokens = 2048 must hold one whole context" in done.output) == (2, True)


@pytest.mark.parametrize(
    ("slurm", "devices"),
    [
        ('gres = "gpu:tile:6,nvme:1"', 6),
        ('gres = "nvme:1,gpu:8"', 8),
        ('gpus_per_node = "a100:4"', 4),
        ('partition = "x"', 4),
        ('gres = "gpu"', 4),
    ],
)
def test_the_file_says_how_many_accelerators_a_node_has(
    checkpoint: Path, tmp_path: Path, slurm: str, devices: int
) -> None:
    text = f'name = "a"\nmodel.path = "{checkpoint}"\n[[pool]]\nname = "main"\n[slurm]\n{slurm}\n'
    (tmp_path / "a.toml").write_text(text)
    assert data(tmp_path / "a.toml", *H100)["device"]["per_node"] == devices


@pytest.mark.parametrize(
    ("inside", "says"),
    [
        ("model-00001-of-00002.safetensors", "a folder with .safetensors files but no config.json"),
        ("llama.Q4_K_M.gguf", "a folder with .gguf files but no config.json"),
        ("snapshots/0e9e39f/config.json", "there is one in {folder}/snapshots/0e9e39f: name that"),
        ("text/config.json", "there is one in {folder}/text: name that"),
        ("README", "a folder with no config.json: a Hugging Face checkpoint has one"),
    ],
)
def test_a_folder_without_a_config_is_told_with_what_it_holds(tmp_path: Path, inside: str, says: str) -> None:
    folder = tmp_path / "mine"
    (folder / inside).parent.mkdir(parents=True)
    (folder / inside).touch()
    done = run(folder, *H100)
    assert done.exit_code == 2
    assert says.format(folder=folder) in " ".join(done.output.split())


def test_what_the_model_still_lacks_is_told_with_the_file(checkpoint: Path, tmp_path: Path) -> None:
    """A plan needs no weights; who writes a file wants to serve."""
    done = run(checkpoint, *H100, "--write", tmp_path / "a.toml")
    assert done.exit_code == 0
    assert "Before it can serve:" in done.output
    assert "holds no .safetensors file" in done.output
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    header = json.dumps({"a": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    first = len(header).to_bytes(8, "little") + header + bytes(4)
    (checkpoint / "model-00001-of-00002.safetensors").write_bytes(first)
    done = run(checkpoint, *H100, "--write", tmp_path / "b.toml")
    assert "model-00002-of-00002.safetensors" in done.output


def test_a_written_file_keeps_the_accelerator_for_the_next_plan_and_for_up(
    checkpoint: Path, tmp_path: Path
) -> None:
    run(checkpoint, *H100, "--write", tmp_path / "a.toml")
    assert load((tmp_path / "a.toml").read_text()).pool[0].accelerator == "h100-80"
    assert data(tmp_path / "a.toml")["device"] == data(tmp_path / "a.toml", *H100)["device"]
    by_bytes = data(tmp_path / "a.toml", "--memory", "40GB")["device"]
    assert (by_bytes["title"], by_bytes["memory"]) == ("an accelerator", 40 * 10**9)


def test_a_replica_of_several_nodes_asks_for_one_switch(tmp_path: Path) -> None:
    card = ("--memory", "40GB", "--per-node", "4")
    run("llama-3.1-70b", *card, "--write", tmp_path / "a.toml")
    pool = load((tmp_path / "a.toml").read_text()).pool[0]
    assert (pool.nodes_per_replica, pool.slurm.switches) == (2, "1@5:00")
    run("llama-3.1-8b", *card, "--write", tmp_path / "b.toml")
    assert load((tmp_path / "b.toml").read_text()).pool[0].slurm.switches is None
