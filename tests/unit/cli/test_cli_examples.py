"""Every command has help and an example; each example is a command line that is understood, and those that need
nothing but this machine are run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from exahpc.cli import main
from exahpc.cli.examples import EXAMPLES

ROOT = Path(__file__).resolve().parents[3]
RUN = {
    "exahpc plan llama-3.1-70b --accelerator h100-80 --context 8192 --concurrency 5000": 0,
    "exahpc plan jobs/many-nodes.toml --accelerator pvc-tile --nodes 64": 0,
    "exahpc status": 0,
    "exahpc model list": 0,
    "exahpc batch check jobs/sample.jsonl": 0,
    "exahpc status laptop --json": 2,
    "exahpc url laptop": 2,
    "exahpc batch status results.h5 --json": 1,
}
"""Example -> exit code where no deployment and no result is there."""


def leaves(
    command: click.Command, path: str, parent: click.Context | None = None
) -> Iterator[tuple[str, click.Command]]:
    with click.Context(command, info_name=path.split()[-1], parent=parent) as context:
        if not isinstance(command, click.Group):
            yield path, command
            return
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from leaves(inner, f"{path} {name}", context)


def examples(path: str, command: click.Command) -> list[str]:
    lines = (line.strip() for line in f"{command.help or ''}\n{command.epilog or ''}".splitlines())
    return [line for line in lines if line.startswith(path) and line[len(path) :][:1] in ("", " ")]


COMMANDS = dict(leaves(main, "exahpc"))
LINES = [line for path, command in COMMANDS.items() for line in examples(path, command)]


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_has_help_and_an_example(path: str) -> None:
    command = COMMANDS[path]
    assert command.help
    assert examples(path, command), f"{path}: write an example into its help, or into exahpc/cli/examples.py"
    assert all(
        option.help for option in command.params if isinstance(option, click.Option) and not option.hidden
    ), "every option says what it does"


@pytest.mark.parametrize("line", LINES)
def test_every_example_is_understood(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of commands, options and their values; files that an example names need not be there."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(click.Path, "convert", lambda self, value, param, ctx: value)
    words = shlex.split(line.partition(" > ")[0].partition(" >> ")[0])[1:]
    command: click.Command = main
    context = click.Context(main, info_name="exahpc")
    while isinstance(command, click.Group):
        inner = command.get_command(context, words[0])
        assert inner is not None, words[0]
        command, words = inner, words[1:]
    command.make_context(command.name, words, parent=context)


@pytest.mark.parametrize("line", RUN)
def test_examples_that_need_only_this_machine_end_as_they_should(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert line in LINES, "it is one of the examples"
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("EXAHPC_HOME", str(tmp_path))
    done = CliRunner().invoke(main, shlex.split(line)[1:])
    assert done.exit_code == RUN[line], done.output


def test_examples_belong_to_commands() -> None:
    assert {f"exahpc {path}" for path in EXAMPLES} <= set(COMMANDS)
