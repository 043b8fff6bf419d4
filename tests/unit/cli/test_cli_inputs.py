"""What is said about inputs on the command line arrives as one value; `batch check` tells and keeps nothing."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from exahpc.batch.inputs.options import InputOptions, Inputs, Template
from exahpc.cli.batch import batch
from exahpc.cli.inputs import takes_inputs
from exahpc.errors import BatchError


@pytest.fixture
def given() -> tuple[click.Command, list[tuple[Inputs, str]]]:
    seen: list[tuple[Inputs, str]] = []

    @click.command()
    @takes_inputs
    @click.option("--other", default="o")
    def command(inputs: Inputs, other: str) -> None:
        seen.append((inputs, other))

    return command, seen


def test_options_become_one_value_and_leave_others_alone(
    given: tuple[click.Command, list[tuple[Inputs, str]]], tmp_path: Path
) -> None:
    command, seen = given
    (tmp_path / "b.csv").write_text("q\n1")
    (tmp_path / "a.csv").write_text("q\n1")
    words = [
        f"{tmp_path}/*.csv",
        "--format",
        "csv",
        "--column",
        "q",
        "--dataset",
        "d",
        "--prompt-as",
        "completion",
    ]
    words += ["--max-tokens", "5", "--system", "s", "--body", '{"top_k": 3}', "--other", "x"]
    result = CliRunner().invoke(command, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    template = Template("completion", "s", 5, {"top_k": 3})
    paths = (tmp_path / "a.csv", tmp_path / "b.csv")
    assert seen == [(Inputs(paths, InputOptions("csv", "q", "d", template)), "x")]
    CliRunner().invoke(command, [str(paths[0])], catch_exceptions=False)
    assert seen[1] == (Inputs(paths[:1], InputOptions()), "o")


@pytest.mark.parametrize("body", ["nonsense", "[1]", "3"])
def test_a_body_that_is_no_object_is_refused(
    given: tuple[click.Command, list[tuple[Inputs, str]]], tmp_path: Path, body: str
) -> None:
    (tmp_path / "a.txt").write_text("x")
    result = CliRunner().invoke(given[0], [str(tmp_path / "a.txt"), "--body", body])
    assert result.exit_code == 2
    assert "is no JSON object" in result.output


def test_check_counts_rows_and_refuses_to_report_into_an_input(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    result = CliRunner().invoke(batch, ["check", str(tmp_path / "a.txt")], catch_exceptions=False)
    assert "2 rows of 1 file can be run: 2 chats, 0 completions" in result.output
    with pytest.raises(BatchError, match="is the input"):
        CliRunner().invoke(
            batch,
            ["check", str(tmp_path / "a.txt"), "--report", str(tmp_path / "a.txt")],
            catch_exceptions=False,
        )
