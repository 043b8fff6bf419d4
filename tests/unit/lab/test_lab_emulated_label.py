"""Nobody gets an emulated engine without asking for it by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from exahpc.agent import __main__ as agent_program
from exahpc.agent.starter import Starter
from exahpc.deployment.parse import load
from exahpc.deployment.spec import Deployment
from exahpc.errors import DeploymentError
from exahpc.lab.emulated.label import node_name, require_label
from exahpc.wire.folder import Folder

TOML = """
name = "d"
[model]
path = "/models/{folder}"
{name}
[[pool]]
name = "a"
[launcher]
kind = "local"
"""


def words(kind: Any, seen: set[Any]) -> set[str]:
    """Keys and literal values of a table of the deployment file, and of all tables in it."""
    if isinstance(kind, str):
        return {kind}
    found: set[str] = set()
    for part in get_args(kind):
        found |= words(part, seen)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in seen:
        seen.add(kind)
        for name, hint in get_type_hints(kind).items():
            found |= {name} | words(hint, seen)
    return found


def test_no_key_and_no_value_of_the_deployment_file_says_emulated() -> None:
    known = words(Deployment, set())
    assert {"launcher", "kind", "slurm", "local", "dtype", "float16"} <= known, "the walk sees keys and values"
    assert not [word for word in known if "emulat" in word.lower() or "simul" in word.lower()]


def test_the_program_that_a_deployment_starts_knows_no_emulated_engine() -> None:
    assert agent_program.run.__defaults__ is not None
    assert agent_program.run.__defaults__[-1] is Starter
    code = (
        "import sys, exahpc.agent.__main__, exahpc.broker.__main__, exahpc.entry.__main__, exahpc.launch.start\n"
        "print([name for name in sys.modules if 'emulated' in name])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_only_a_model_that_is_named_emulated_is_served() -> None:
    require_label(load(TOML.format(folder="m", name='name = "emulated-8b"')))
    with pytest.raises(DeploymentError, match=r"model\.name = 'llama'.*begins with \"emulated\""):
        require_label(load(TOML.format(folder="m", name='name = "llama"')))
    with pytest.raises(DeploymentError, match=r"model\.name = 'm'"):
        require_label(load(TOML.format(folder="m", name="")))


@pytest.mark.parametrize(
    "program",
    [
        ("replicas", "--pool", "a"),
        ("agent", "--pool", "a", "--task", "0"),
        ("fleet", "--pool", "a", "--count", "1"),
    ],
)
def test_each_emulated_program_refuses_a_deployment_without_the_label(program: Any, tmp_path: Path) -> None:
    folder = Folder.create(tmp_path / "d", TOML.format(folder="m", name='name = "llama"'))
    argv = [sys.executable, "-m", f"exahpc.lab.emulated.{program[0]}", "--folder", str(folder.path), *program[1:]]
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=100)
    assert done.returncode == DeploymentError.exit_code
    assert 'begins with "emulated"' in done.stderr
    assert "Traceback" not in done.stderr


def test_status_shows_a_node_that_is_none() -> None:
    assert node_name(7) == "emulated-7"
