"""Inputs that cannot be read in place: turned once, streaming, into a file of lines in the batch's folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import msgspec

from exahpc.batch.inputs.detect import Found, holds_prompt, reading
from exahpc.batch.inputs.elements import elements
from exahpc.batch.inputs.options import InputOptions
from exahpc.batch.inputs.tables import Prompts, csv_prompts, hdf5_prompts, parquet_prompts
from exahpc.batch.lines import Flaw
from exahpc.batch.plan import Form

_CHUNK = 1 << 20
_ROWS = 256
_encode_lines = msgspec.json.Encoder().encode_lines


def form_in_place(found: Found) -> Form | None:
    """How lines of such a file are written; None when it must be copied."""
    forms: dict[str, Form] = {"requests": "request", "text": "text", "jsonl": "field"}
    return None if found.packed else forms.get(found.format)


def copy(path: Path, found: Found, options: InputOptions, target: Path, beat: Callable[[], None]) -> Form:
    """Write the rows of `path` to `target`; returns how its lines are written. beat is called now and then.

    Raises BatchError when the file as a whole cannot be read, OSError when the disk is full; then nothing is left.
    """
    try:
        with os.fdopen(os.open(target, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb") as file:
            form = _form(path, found, options)
            for i, piece in enumerate(_pieces(path, found, options)):
                file.write(piece)
                if i % 16 == 0:
                    beat()
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        target.unlink(missing_ok=True)  # what unpacks to more than there is room for must not keep the room
        raise
    return form


def _form(path: Path, found: Found, options: InputOptions) -> Form:
    if found.format == "json":
        with reading(path, found.packed) as stream:
            first = next(elements(stream, path), b"")
        return "field" if holds_prompt(first, options) else "request"
    return form_in_place(Found(found.format, None)) or "prompt"


def _pieces(path: Path, found: Found, options: InputOptions) -> Iterator[bytes]:
    if found.format == "parquet":
        yield from _prompt_lines(parquet_prompts(path, options.column))
        return
    if found.format == "hdf5":
        yield from _prompt_lines(hdf5_prompts(path, options.dataset))
        return
    with reading(path, found.packed) as stream:
        match found.format:
            case "csv" | "tsv":
                delimiter = "," if found.format == "csv" else "\t"
                yield from _prompt_lines(csv_prompts(stream, path, options.column, delimiter))
            case "json":
                found_elements = elements(stream, path)
                while some := list(islice(found_elements, _ROWS)):
                    yield b"\n".join([*some, b""])
            case _:
                while piece := stream.read(_CHUNK):
                    yield piece


def _prompt_lines(prompts: Prompts) -> Iterator[bytes]:
    while some := list(islice(prompts, _ROWS)):
        yield _encode_lines(
            (origin, None, prompt.reason) if isinstance(prompt, Flaw) else (origin, prompt)
            for origin, prompt in some
        )
