"""Options that say what a batch is made from; shared by every command that takes inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import Any

import click
import msgspec

from exahpc.batch.check import check_inputs
from exahpc.batch.inputs.options import FORMATS, InputOptions, Inputs, Template, find_inputs, refuse_output
from exahpc.cli.batch_view import bar
from exahpc.cli.common import json_text, notes


def _json_object(context: click.Context, parameter: click.Parameter, value: str | None) -> dict[str, Any]:
    if value is None:
        return {}
    try:
        return msgspec.json.decode(value, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise click.BadParameter(f"{value!r} is no JSON object: {error}") from error


_OPTIONS = (
    click.argument("patterns", metavar="INPUT...", nargs=-1, required=True),
    click.option("--format", "form", type=click.Choice(FORMATS), help="Form of the inputs, when names mislead."),
    click.option("--column", help="Column or JSON field that holds the prompt."),
    click.option("--dataset", help="Path of the dataset with the prompts in HDF5 files."),
    click.option(
        "--prompt-as",
        "kind",
        type=click.Choice(("chat", "completion")),
        default="chat",
        show_default=True,
        help="What a plain prompt becomes: a message of the user, or a text to go on from.",
    ),
    click.option("--system", help="System message before each plain prompt."),
    click.option("--max-tokens", type=click.IntRange(1), help="Most new tokens for each plain prompt."),
    click.option(
        "--body",
        metavar="JSON",
        callback=_json_object,
        help="Further request fields for each plain prompt, for instance '{\"temperature\": 0}'.",
    ),
)


def takes_inputs(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds INPUT... and the options about it; the command gets them as one argument `inputs` (an `Inputs`)."""

    @wraps(command)
    def called(
        *args: Any,
        patterns: tuple[str, ...],
        form: Any,
        column: str | None,
        dataset: str | None,
        kind: Any,
        system: str | None,
        max_tokens: int | None,
        body: dict[str, Any],
        **others: Any,
    ) -> Any:
        template = Template(kind, system, max_tokens, body)
        options = InputOptions(form, column, dataset, template)
        return command(*args, inputs=find_inputs(patterns, options), **others)

    decorated: Callable[..., Any] = called
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


@click.command()
@takes_inputs
@click.option("--model", metavar="NAME", help="The served name that every request must give.")
@click.option(
    "--report", type=click.Path(dir_okay=False, path_type=Path), help="File for the list of all bad rows, if any."
)
@click.option("--json", "as_json", is_flag=True, help="The counts as JSON.")
def check(inputs: Inputs, model: str | None, report: Path | None, as_json: bool) -> None:
    """Check all rows of INPUT as `batch run` would, without a deployment.

    Exit code 0 when every row can be run. Whether a prompt fits into the model is known only to the model's
    tokenizer: rows that do not fit become error records while the batch runs.
    """
    if report is not None:
        refuse_output(report, inputs.paths)
    with bar(notes, "checking") as told:
        found = check_inputs(inputs, model=model, report=report, progress=told)
    if as_json:
        click.echo(json_text(asdict(found)))
        return
    files = "1 file" if found.files == 1 else f"{found.files} files"
    click.echo(f"{found.rows} rows of {files} can be run: {found.chats} chats, {found.completions} completions")
