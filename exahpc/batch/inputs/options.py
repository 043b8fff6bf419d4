"""What the user says about the inputs of a batch: files, their form, and what a plain prompt becomes."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from exahpc.errors import BatchError

Format = Literal["requests", "text", "jsonl", "json", "csv", "tsv", "parquet", "hdf5"]
"""requests: OpenAI's batch lines; text: one prompt a line; jsonl, json: objects, or strings, with prompts."""
FORMATS: tuple[Format, ...] = get_args(Format)
Kind = Literal["chat", "completion"]


class Template(msgspec.Struct, frozen=True):
    """The request that a plain prompt becomes.

    kind: a chat message of the user, or a text to go on from; system: a system message before it (chat only);
    max_tokens: most new tokens; body: further fields of the request, by their API names.
    """

    kind: Kind = "chat"
    system: str | None = None
    max_tokens: int | None = None
    body: dict[str, Any] = {}


class InputOptions(msgspec.Struct, frozen=True):
    """How inputs are read; what is None is found from a file's name and content.

    column: the field or column that holds the prompt; dataset: path of the dataset in HDF5 files.
    """

    format: Format | None = None
    column: str | None = None
    dataset: str | None = None
    template: Template = Template()


AS_FOUND = InputOptions()


class Inputs(msgspec.Struct, frozen=True):
    """The inputs of one batch, in the order of their rows. paths: absolute, each file once."""

    paths: tuple[Path, ...]
    options: InputOptions = AS_FOUND


def find_inputs(patterns: Sequence[str | Path], options: InputOptions = AS_FOUND) -> Inputs:
    """Files and glob patterns (`**` for folders in folders) as the inputs of one batch.

    Matches of a pattern are taken in the order of their names; a file that is named twice is taken once. Raises
    BatchError for a pattern without a match and for what is no regular file.
    """
    found: dict[tuple[int, int], Path] = {}
    for pattern in map(str, patterns):
        for path in (
            [pattern] if os.path.lexists(pattern) else sorted(glob.glob(pattern, recursive=True)) or [pattern]
        ):
            try:
                there = os.stat(path)
            except OSError as error:
                raise BatchError(f"input {path} cannot be read: {error.strerror}") from error
            if not os.path.isfile(path):
                raise BatchError(
                    f"input {path} is no regular file: name files, or a pattern such as {path}/*.jsonl"
                )
            found.setdefault((there.st_dev, there.st_ino), Path(path).absolute())
    if not found:
        raise BatchError("no input is named: give at least one file")
    return Inputs(tuple(found.values()), options)


def refuse_output(output: Path, inputs: Sequence[Path]) -> None:
    """Raises BatchError when writing `output`, or its `.parts` folder, would touch one of `inputs`, by
    whatever name or link."""
    parts = os.path.realpath(output.with_name(output.name + ".parts"))
    for path in inputs:
        if _same(output, path):
            raise BatchError(f"output {output} is the input {path}: choose another output")
        if os.path.realpath(path).startswith(parts + os.sep):
            raise BatchError(f"input {path} lies in {parts}, which belongs to the output: choose another output")


def _same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)
