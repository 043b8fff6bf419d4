"""What packaging/compile.py needs to find in a checkout, whatever is installed beside it."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def modules() -> list[str]:
    found: list[str] = project()["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["modules"]
    return found


def test_mypy_finds_no_mistake_in_a_checkout_that_is_not_installed(tmp_path: Path) -> None:
    """Of a checkout that is installed to be edited, mypy tells no mistakes at all."""
    kept = shutil.ignore_patterns("__pycache__")
    for name in ("exahpc", "packaging"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=kept)
    argv = [sys.executable, "-P", "-m", "mypy", "--config-file=packaging/mypyc.ini", *modules()]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_compiled_modules_import_is_there_when_a_wheel_is_built() -> None:
    imported = set()
    for name in modules():
        for node in ast.walk(ast.parse((ROOT / name).read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.partition(".")[0])
    passed_over = re.findall(r"(\w+)\.\*", (ROOT / "packaging/mypyc.ini").read_text())
    providers = packages_distributions()
    others = imported - sys.stdlib_module_names - {"exahpc", *passed_over}
    needed = {providers[name][0].lower() for name in others}
    required = project()["build-system"]["requires"]
    assert needed <= {re.split(r"[>=<]", line)[0] for line in required}
