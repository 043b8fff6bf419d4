"""What form an input has: from what the user says, the file's name, and its first bytes."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from exahpc.batch.inputs.options import Format, InputOptions
from exahpc.errors import BatchError

Packed = Literal["gzip", "zstd"]
PROMPT_FIELD = "prompt"
"""The field or column with the prompt when the user names none."""

_PACKED_NAMES: dict[str, Packed] = {".gz": "gzip", ".zst": "zstd"}
_PACKED_BEGINNINGS: dict[bytes, Packed] = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_NAMES: dict[str, Format] = {
    ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet", ".pq": "parquet", ".h5": "hdf5", ".hdf5": "hdf5",
    ".txt": "text",
}  # fmt: skip
_BEGINNINGS: dict[bytes, Format] = {b"PAR1": "parquet", b"\x89HDF\r\n\x1a\n": "hdf5"}
_REQUEST_FIELDS = {"custom_id", "method", "url", "body"}
_LOOK = 1 << 20
_FIRST_LINES = 100


@dataclass(frozen=True)
class Found:
    """How to read one input. packed: how it is compressed, if it is."""

    format: Format
    packed: Packed | None


def detect(path: Path, options: InputOptions) -> Found:
    """Raises BatchError when the file cannot be read, or is compressed in a form that cannot be."""
    with open(path, "rb") as file:
        beginning = file.read(8)
    packed = next((how for start, how in _PACKED_BEGINNINGS.items() if beginning.startswith(start)), None)
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in _PACKED_NAMES:
        suffixes.pop()
    form = options.format or next((f for start, f in _BEGINNINGS.items() if beginning.startswith(start)), None)
    form = form or _NAMES.get(suffixes[-1] if suffixes else "")
    if form is None:
        with reading(path, packed) as plain:
            form = _of_text(plain.read(_LOOK), suffixes[-1] if suffixes else "", options)
    if packed and form in ("parquet", "hdf5"):
        raise BatchError(f"input {path} is {form} inside {packed}: unpack it, {form} compresses by itself")
    return Found(form, packed)


def _of_text(beginning: bytes, suffix: str, options: InputOptions) -> Format:
    text = beginning.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"["):
        first = text[1:].lstrip()[:1]
        if suffix == ".json" or first == b"{":
            return "json"
    if suffix not in (".jsonl", ".ndjson", ".json") and not text.startswith(b"{"):
        return "text"
    return "jsonl" if holds_prompt(_first_object(text), options) else "requests"


def _first_object(text: bytes) -> bytes:
    """The first of some lines that is a JSON object, else the first line: one spoilt line must not decide how all
    others are read."""
    lines = text.split(b"\n", _FIRST_LINES)[:_FIRST_LINES]
    for line in lines:
        try:
            msgspec.json.decode(line, type=dict)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
        return line
    return lines[0]


def holds_prompt(line: bytes, options: InputOptions) -> bool:
    """Whether a JSON line is a prompt, or an object with one in a field; not a request."""
    if options.column is not None:
        return True
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    if isinstance(found, dict):
        return PROMPT_FIELD in found and not _REQUEST_FIELDS & found.keys()
    return isinstance(found, str)


@contextmanager
def reading(path: Path, packed: Packed | None) -> Iterator[BinaryIO]:
    """The unpacked bytes of a file, streaming. Raises BatchError when they are damaged or end too early."""
    try:
        if packed == "gzip":
            with gzip.open(path, "rb") as file:
                yield file  # type: ignore[misc]
        elif packed == "zstd":
            import pyarrow  # takes a tenth of a second: only when needed

            with pyarrow.input_stream(str(path), compression="zstd") as stream:
                yield io.BufferedReader(stream)
        else:
            with open(path, "rb") as plain:
                yield plain
    except (EOFError, zlib.error) as error:
        raise BatchError(f"input {path} is damaged: {error}") from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise BatchError(f"input {path} is damaged: {error}") from error  # as gzip and pyarrow say it
