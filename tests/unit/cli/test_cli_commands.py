"""Commands answer a user's mistake in one line with an exit code, never with a traceback."""

from __future__ import annotations

import json
import shlex
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import exahpc
from exahpc.cli import main, version
from exahpc.cli.common import json_text
from exahpc.deployment.parse import load
from exahpc.launch import cluster, local, prepare
from exahpc.slurm.scripts import directory
from exahpc.wire import messages as m
from tests.tiny import make_tokenizer

JOBS = Path(__file__).parents[3] / "jobs"
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


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXAHPC_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def run(*argv: str | Path) -> Result:
    return CliRunner().invoke(main, [str(word) for word in argv])


@pytest.mark.parametrize(
    "argv",
    [[], *([name] for name in main.list_commands(click.Context(main))),
     *(["batch", name] for name in ("run", "export", "status", "cancel")), ["model", "fetch"],
     *(["rollout", name] for name in ("start", "status", "promote", "abort", "rollback"))],
)  # fmt: skip
def test_every_command_has_help(argv: list[str]) -> None:
    done = run(*argv, "--help")
    assert done.exit_code == 0
    assert done.output.startswith("Usage: ")
    assert len(done.output.splitlines()) > 4


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (["status", "nobody"], 2, 'error: no deployment "nobody"'),
        (["url", "nobody"], 2, 'error: no deployment "nobody"'),
        (["down", "nobody"], 2, 'error: no deployment "nobody"'),
        (["chat", "nobody", "hi"], 2, 'error: no deployment "nobody"'),
        (["model", "fetch", "gpt-9"], 2, 'error: no model "gpt-9" to fetch; there are: smollm2'),
        (["up", "/nowhere.toml"], 2, "does not exist"),
        (["stat"], 2, "No such command 'stat'"),
    ],
)
def test_a_mistake_is_one_line_and_an_exit_code(argv: list[str], code: int, says: str) -> None:
    done = run(*argv)
    assert done.exit_code == code
    assert says in done.output
    assert "Traceback" not in done.output


def test_up_tells_all_problems_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text('name = "x"\nmodel.path = "m"\n[[pool]]\nname = "a"\nreplicas = 0\ntensor_paralel = 2\n')
    done = run("up", file)
    assert done.exit_code == 2
    assert "pool[0].replicas = 0: must be at least 1" in done.output
    assert 'did you mean "tensor_parallel"?' in done.output


def test_a_dry_run_prints_the_exact_command_lines_and_starts_nothing(home: Path) -> None:
    done = run("up", JOBS / "many-nodes.toml", "--dry-run")
    lines = [shlex.split(line) for line in done.output.splitlines() if line.startswith("sbatch ")]
    assert [argv[0] for argv in lines] == ["sbatch", "sbatch"]
    assert "--array=0-255" in lines[1]
    assert lines[1][-2:] == ["--pool", "main"]
    for script in ("head.sbatch", "replica.sbatch", "supervise.sh"):
        assert str(directory() / script) in done.output.splitlines()
    assert not home.exists()


def test_a_dry_run_tells_of_the_successors_that_up_submits_as_well(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "d.toml"
    file.write_text(
        'name="d"\nmodel.path="/m"\n[[pool]]\nname="a"\nreplicas=2\n[walltime]\nsuccessors="chain"\nchain=3'
    )
    assert "for each of 2 tasks: 3 more of its kind" in run("up", file, "--dry-run").output


def test_a_dry_run_needs_no_slurm(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "m"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG))
    make_tokenizer(model)
    (model / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    file = tmp_path / "d.toml"
    file.write_text(f'name="d"\nmodel.path="{model}"\n[[pool]]\nname="a"\nreplicas=2\nslurm.extra=["--x=a b"]')
    monkeypatch.setenv("PATH", "/nowhere")
    done = run("up", file, "--dry-run")
    assert done.exit_code == 0, done.output
    deployment = prepare.read(file)
    expected = cluster.submissions(deployment, home / "d", directory()).values()
    found = [tuple(shlex.split(line)) for line in done.output.splitlines() if line.startswith("sbatch ")]
    assert found == [submission.argv() for submission in expected]
    assert "weights" in done.output
    assert not home.exists()


def test_up_warns_of_a_pool_beyond_its_accelerator_and_refuses_it_when_strict(tmp_path: Path) -> None:
    model = tmp_path / "m"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG))
    make_tokenizer(model)
    (model / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    file = tmp_path / "d.toml"
    pool = 'name="a"\naccelerator="a100-40"\nkv_tokens=1000000000'
    file.write_text(f'name="d"\nmodel.path="{model}"\n[[pool]]\n{pool}')
    done = run("up", file, "--dry-run")
    assert (done.exit_code, "Warning: pool 'a' on NVIDIA A100 40 GB" in done.output) == (0, True)
    strict = run("up", file, "--dry-run", "--strict")
    assert (strict.exit_code, "set kv_tokens to at most" in strict.output) == (2, True)


def test_status_without_a_name_lists_what_there_is(home: Path) -> None:
    assert run("status").exit_code == 0


@pytest.mark.parametrize("file", sorted(JOBS.glob("*.toml")), ids=lambda file: file.stem)
def test_every_ready_deployment_is_valid_and_has_command_lines(file: Path) -> None:
    deployment = load(file.read_text(), file.name)
    if deployment.launcher.kind == "local":
        commands = local.commands(deployment, Path("/d"), directory())
        assert list(commands) == ["head", *(f"{p.name}-{t}" for p in deployment.pool for t in range(p.tasks))]
    else:
        assert list(cluster.submissions(deployment, Path("/d"), directory())) == [
            "head", *(pool.name for pool in deployment.pool)
        ]  # fmt: skip


def test_no_command_line_holds_a_secret(home: Path, tmp_path: Path) -> None:
    deployment = load((JOBS / "laptop.toml").read_text())
    folder, key = prepare.create(home / "laptop", deployment)
    secrets = [key or "", folder.fleet_key().secret]
    words = " ".join(
        word for argv in local.commands(deployment, folder.path, directory()).values() for word in argv
    )
    assert not any(secret in words for secret in secrets)


def test_json_for_users_has_the_names_of_the_fields() -> None:
    agent = m.AgentStatus("a", 0, "n", "1_0", "RUNNING", True, 0.5, 0, [m.ReplicaState(0, 1, "ready", running=2)])
    told = json.loads(
        json_text(m.StatusReply(1, 1, 1, [agent], [m.EntryStatus(0, "u", "n", 1, 0, 0, 0)], [], ["note"]))
    )
    assert (told["ready"], told["notes"], told["entries"][0]["in_flight"]) == (1, ["note"], 1)
    assert told["agents"][0]["replicas"][0]["running"] == 2


@pytest.mark.parametrize("argv", [("chat", "x", "a\udcff"), ("chat", "x", "a", "--system", "b\udcff")])
def test_a_question_that_is_no_text_is_refused(argv: tuple[str, ...]) -> None:
    ended = run(*argv)
    assert (ended.exit_code, "character 2 is not valid UTF-8" in ended.output) == (2, True)


def test_what_to_do_next_is_one_command_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "a-rather-long-name-of-a-deployment-as-they-are-wont-to-be-here"
    make_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    file = tmp_path / "d.toml"
    file.write_text(f'name="{name}"\nmodel.path="."\n[[pool]]\nname="a"\n[launcher]\nkind="local"\nmpirun="true"')
    monkeypatch.setattr("exahpc.launch.start.begin", lambda *_, **__: None)
    monkeypatch.setattr("exahpc.cli.common.notes.width", 40)
    done = run("up", file, "--no-wait")
    assert done.exit_code == 0, done.output
    commands = [line.strip() for line in done.output.splitlines() if line.startswith("  exahpc ")]
    assert commands == [f'exahpc chat {name} "Hello"', *(f"exahpc {w} {name}" for w in ("url", "status", "down"))]


def test_up_tells_scripts_where_it_is_and_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    file = tmp_path / "d.toml"
    file.write_text('name="d"\nmodel.path="."\n[[pool]]\nname="a"\n[launcher]\nkind="local"\nmpirun="true"')
    monkeypatch.setattr("exahpc.launch.start.begin", lambda *_, **__: None)
    told = [json.loads(run("up", file, "--no-wait", "--json").stdout) for _ in range(2)]
    assert told[0]["key"] == run("key", "d").stdout.strip()
    assert (told[0]["name"], told[0]["url"]) == ("d", None), "no entry has published one yet"
    assert told[0] == told[1], "also when the key is not new"


def test_the_version_tells_whether_compiled_modules_are_there(tmp_path: Path) -> None:
    (tmp_path / "entry").mkdir()
    assert version(tmp_path) == exahpc.__version__
    (tmp_path / f"entry/ledger{EXTENSION_SUFFIXES[0]}").touch()
    assert version(tmp_path) == f"{exahpc.__version__} (compiled)"
