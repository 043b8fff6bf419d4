"""Choosing between pyslurm and the command line: a pyslurm that kills the interpreter is only a reason."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from exahpc.errors import SlurmError
from exahpc.slurm import choose as _  # noqa: F401  (the package's function; the module comes from sys.modules)
from exahpc.slurm.cli import CommandLine

from .fake_slurm import FakeSlurm

module = sys.modules["exahpc.slurm.choose"]


def pyslurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A pyslurm package with this text, importable here and in child processes."""
    (tmp_path / "site" / "pyslurm").mkdir(parents=True)
    (tmp_path / "site" / "pyslurm" / "__init__.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))


@pytest.mark.case("B53")
def test_without_pyslurm_the_command_line_is_taken_and_says_so(slurm: FakeSlurm) -> None:
    client, why = module.choose()
    assert isinstance(client, CommandLine)
    assert "not installed" in why


@pytest.mark.case("B53")
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import os; os._exit(3)", "exit code 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "exit code -11"),
        ("raise ImportError('symbol lookup error: undefined symbol')", "undefined symbol"),
        ("__version__ = 'UNKNOWN'", "has no attribute 'Jobs'"),
    ],
)
def test_a_pyslurm_that_does_not_work_leads_to_the_command_line(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, reason: str
) -> None:
    pyslurm(tmp_path, monkeypatch, text)
    client, why = module.choose()
    assert isinstance(client, CommandLine)
    assert reason in why
    with pytest.raises(SlurmError, match="asked for"):
        module.choose("pyslurm")


def test_a_pyslurm_for_another_slurm_is_not_taken(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyslurm(tmp_path, monkeypatch, "__version__ = '25.11.2'\nclass Jobs:\n    load = staticmethod(dict)\n")
    slurm.says("sbatch", "--version", "slurm 22.05.8\n")
    client, why = module.choose()
    assert isinstance(client, CommandLine)
    assert "25.11.2 is made for another Slurm than this 22.05.8" in why


def test_a_machine_without_slurm_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SlurmError, match="sbatch is not on PATH"):
        module.choose()


def test_the_environment_may_choose(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(module.VARIABLE, "cli")
    assert module.choose()[1] == "asked for"
    monkeypatch.setenv(module.VARIABLE, "what")
    with pytest.raises(SlurmError, match="EXAHPC_SLURM_CLIENT"):
        module.choose()
