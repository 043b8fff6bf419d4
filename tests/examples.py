"""The examples of all commands, as their help shows them, and what tests must change about them to run them.

Each line is run by exactly one of three: tests/unit/cli/test_cli_examples.py where no deployment is needed,
tests/e2e/test_e2e_examples.py at a living one, or the test that ELSEWHERE names. A law in the former holds it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import click

from exahpc.cli import main

ROOT = Path(__file__).resolve().parents[1]

PLACES = ("/models/", "/scratch/me/")
"""Folders of a site: tests have their own of the same name below a temporary one."""

SHORTER = {
    "exahpc bench laptop --concurrency 8": "--seconds 1 --ramp 0 --drain 5 --prompt 8 --new 8 --processes 1",
    "exahpc sweep jobs/four-nodes.toml --pool short --concurrency 8,32 --slo ttft=1s,tbt=100ms": (
        "--shapes 1x1x1 --concurrency 2 --seconds 1 --ramp 0 --drain 5 --prompt 8 --new 8 --processes 1"
    ),
    "exahpc ladder jobs/four-nodes.toml --pool short --nodes 1,2,4 --rate 20 --simulate": (
        "--nodes 1,2 --rate 2 --seconds 1 --ramp 0 --drain 5"
    ),
    "exahpc simulate jobs/many-nodes.toml": "--seconds 1 --rate 10",
}
"""Example -> options after it (the last one counts): the same question, with less load and for a shorter time."""

ELSEWHERE = {
    "exahpc doctor jobs/four-nodes.toml --nodes 2 --gate few-nodes": (
        "asks Slurm for two nodes",
        "tests/cluster/test_cluster_doctor.py::test_the_doctor_sees_two_nodes_of_the_development_cluster",
    ),
    "exahpc doctor jobs/many-nodes.toml --inside --gate 32 --json": (
        "is what the job of `--nodes` runs in its allocation",
        "tests/cluster/test_cluster_doctor.py::test_the_doctor_sees_two_nodes_of_the_development_cluster",
    ),
    "exahpc batch run 'inputs/*.jsonl.gz' --model /models/Llama-3.1-8B --nodes 4 -o results.h5": (
        "asks Slurm for nodes",
        "tests/cluster/test_cluster_batch_hired.py::"
        "test_nodes_that_the_last_rows_do_not_need_are_given_back_before_the_end",
    ),
    "exahpc watch many": (
        "needs a Slurm whose nodes may not submit",
        "tests/unit/cli/test_cli_watch.py::"
        "test_wishes_are_done_and_answered_and_the_end_of_the_deployment_ends_it",
    ),
    "exahpc curve laptop -o curve": (
        "finds its levels itself and stays at each for 25 seconds",
        "tests/e2e/test_e2e_curve.py::test_one_command_measures_levels_and_writes_the_curve",
    ),
    "exahpc ladder jobs/four-nodes.toml --pool short --nodes 1,2,4 --concurrency 64": (
        "starts three deployments on up to four nodes; its simulated neighbour is run",
        "tests/unit/cli/test_cli_ladder.py::"
        "test_a_simulated_ladder_is_written_as_json_and_hdf5_and_says_that_it_is_emulated",
    ),
}
"""Example -> why it is run as it is by none of the two modules, and the test which runs that command otherwise."""


def leaves(
    command: click.Command, path: str, parent: click.Context | None = None
) -> Iterator[tuple[str, click.Command]]:
    """(words, command) of everything that does something itself."""
    with click.Context(command, info_name=path.split()[-1], parent=parent) as context:
        if not isinstance(command, click.Group):
            yield path, command
            return
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from leaves(inner, f"{path} {name}", context)


def examples(path: str, command: click.Command) -> list[str]:
    """The lines of its help that a user could copy."""
    lines = (line.strip() for line in f"{command.help or ''}\n{command.epilog or ''}".splitlines())
    return [line for line in lines if line.startswith(path) and line[len(path) :][:1] in ("", " ")]


COMMANDS = dict(leaves(main, "exahpc"))
LINES = [line for path, command in COMMANDS.items() for line in examples(path, command)]


def runnable(line: str, folder: Path) -> str:
    """The example for a shell in `folder`: PLACES lie below it, and SHORTER is added."""
    assert line in LINES, "it is an example of no command"
    words = f"{line} {SHORTER.get(line, '')}".strip()
    for place in PLACES:
        words = words.replace(f" {place}", f" {shlex.quote(str(folder))}{place}")
    return words
