"""Shells complete commands, options and names of deployments."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from exahpc.cli import main
from exahpc.cli.completion import SHELLS, VARIABLE


def completed(words: str, home: Path) -> list[str]:
    """What bash is offered after these words."""
    environment = os.environ | {
        VARIABLE: "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
        "EXAHPC_HOME": str(home),
    }
    code = "from exahpc.cli import main; main(prog_name='exahpc')"
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_gets_a_script_that_asks_us(shell: str) -> None:
    done = CliRunner().invoke(main, ["completion", shell])
    assert done.exit_code == 0
    assert f"{VARIABLE}={shell}_complete" in done.output
    assert "_exahpc_completion" in done.output
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=done.output, text=True, check=True)


def test_an_unknown_shell_is_wrong_usage() -> None:
    assert CliRunner().invoke(main, ["completion", "tcsh"]).exit_code == 2


def test_commands_options_and_deployments_are_completed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "deployment.toml").touch()
    assert {"up", "url"} <= set(completed("exahpc u", tmp_path))
    assert completed("exahpc doctor --ga", tmp_path) == ["--gate"]
    assert completed("exahpc status mi", tmp_path) == ["mine"]
