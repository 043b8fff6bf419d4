"""Prompts out of tables, streaming: (where in the file, prompt or flaw) of each row."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np

from exahpc.batch.inputs.detect import PROMPT_FIELD
from exahpc.batch.lines import LONGEST_LINE, Flaw
from exahpc.errors import BatchError

Prompts = Iterator[tuple[int, Any]]
_ROWS = 4096
_TAKEN = "text, lists of token ids, or lists of messages"


def column_of(names: Sequence[str], wanted: str | None, path: Path) -> str:
    """The column with the prompts. Raises BatchError that lists all columns when it is not clear which."""
    if wanted is None and len(names) == 1:
        return names[0]
    column = wanted or PROMPT_FIELD
    if names.count(column) == 1:
        return column
    trouble = "has no column" if column not in names else "has several columns"
    raise BatchError(f"input {path} {trouble} {column!r}: name one of {', '.join(map(repr, names))} by --column")


def csv_prompts(stream: BinaryIO, path: Path, column: str | None, delimiter: str) -> Prompts:
    """A CSV file with a header. Numbers are those of the line where a row begins."""
    csv.field_size_limit(LONGEST_LINE)
    text = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
    rows = csv.reader(text, delimiter=delimiter, strict=True)
    try:
        header = next(rows, [])
    except csv.Error as error:
        raise BatchError(f"input {path} is no CSV: {error}") from error
    if not header:
        raise BatchError(f"input {path} does not begin with the names of its columns: its first line is empty")
    at = header.index(column_of(header, column, path))
    while True:
        line = rows.line_num + 1
        try:
            cells = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            yield line, Flaw(f"not CSV: {error}")
            continue
        if len(cells) == len(header):
            cell = cells[at]
            yield line, cell if cell.isascii() else _decoded(cell.encode("utf-8", "surrogateescape"))
        elif cells:
            yield line, Flaw(f"{len(cells)} cells under a header of {len(header)}: quote what holds a delimiter")


def parquet_prompts(path: Path, column: str | None) -> Prompts:
    """A Parquet file: text, lists of token ids or lists of messages. Numbers count rows from 1."""
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            name = column_of(file.schema_arrow.names, column, path)
            kind = file.schema_arrow.field(name).type
            if not _may_hold_prompts(kind):
                raise BatchError(f"column {name!r} of input {path} has type {kind}: {_TAKEN} are needed")
            number = 0
            for batch in file.iter_batches(_ROWS, columns=[name]):
                values = _values(batch.column(name))
                yield from enumerate(values, number + 1)
                number += len(values)
    except (pyarrow.ArrowException, OSError) as error:
        raise BatchError(f"input {path} cannot be read as Parquet: {error}") from error


def _may_hold_prompts(kind: Any) -> bool:
    """Whether values of a column of this type can be prompts. What others become in Python may be nothing that can
    be written down (times in nanoseconds), or a surprise (dates)."""
    from pyarrow import types

    if types.is_dictionary(kind):
        return _may_hold_prompts(kind.value_type)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = kind.value_type
        return bool(types.is_integer(inner) or types.is_null(inner) or _is_message(inner))
    texts = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    more = (types.is_fixed_size_binary, types.is_string_view, types.is_binary_view, types.is_null)
    return any(fits(kind) for fits in (*texts, *more))


def _is_message(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_struct(kind)) and all(_is_json(field.type) for field in kind)


def _is_json(kind: Any) -> bool:
    from pyarrow import types

    if types.is_struct(kind):
        return all(_is_json(field.type) for field in kind)
    if types.is_dictionary(kind):
        return _is_json(kind.value_type)
    if types.is_list(kind) or types.is_large_list(kind):
        return _is_json(kind.value_type)
    plain = (types.is_string, types.is_large_string, types.is_integer, types.is_floating, types.is_boolean)
    return any(fits(kind) for fits in (*plain, types.is_null))


def _values(column: Any) -> list[Any]:
    import pyarrow

    if pyarrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pyarrow.types.is_string(column.type) or pyarrow.types.is_large_string(column.type):
        column = column.cast(pyarrow.large_binary())  # so that text that is no UTF-8 is a flaw of its row alone
    return [_decoded(value) if isinstance(value, bytes) else _without_nulls(value) for value in column.to_pylist()]


def _without_nulls(value: Any) -> Any:
    """Messages without the fields that other messages of the column have."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [{k: v for k, v in item.items() if v is not None} if item else item for item in value]
    return value


def hdf5_prompts(path: Path, dataset: str | None) -> Prompts:
    """One dataset of an HDF5 file: strings (n,), token ids (n, m), or variable-length token ids (n,)."""
    try:
        with h5py.File(path, "r", locking=False) as file:
            found = _dataset(file, dataset, path)
            rows = found.shape[0]
            step = max(1, min(_ROWS, LONGEST_LINE // max(1, found.dtype.itemsize * int(np.prod(found.shape[1:])))))
            for first in range(0, rows, step):
                values = found[first : first + step].tolist()
                yield from enumerate(values if found.ndim == 2 else map(_prompt_of, values), first + 1)
    except (OSError, RuntimeError, KeyError, ValueError) as error:  # as h5py says that a file is damaged
        raise BatchError(f"input {path} cannot be read as HDF5: {error}") from error


def _prompt_of(value: Any) -> Any:
    if isinstance(value, bytes):
        return _decoded(value)
    return value.tolist() if isinstance(value, np.ndarray) else value


def _dataset(file: Any, wanted: str | None, path: Path) -> Any:
    if wanted is not None:
        found = file.get(wanted)
        if not isinstance(found, h5py.Dataset):
            raise BatchError(f"input {path} has no dataset {wanted!r}: it has {_listed(_fitting(file))}")
        if not _fits(found):
            raise BatchError(
                f"dataset {wanted!r} of input {path} has shape {found.shape}, type {found.dtype}: strings (n,), "
                f"token ids (n, m), or token ids of variable length (n,) are needed"
            )
        return found
    fitting = _fitting(file)
    names = [PROMPT_FIELD] if PROMPT_FIELD in fitting else fitting
    if len(names) != 1:
        raise BatchError(f"input {path} has {_listed(names)}: name the one with the prompts by --dataset")
    return file[names[0]]


def _fitting(file: Any) -> list[str]:
    names: list[str] = []
    file.visititems(
        lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) and _fits(item) else None
    )
    return names


def _fits(dataset: Any) -> bool:
    inner = h5py.check_vlen_dtype(dataset.dtype)
    if h5py.check_string_dtype(dataset.dtype) is not None or (inner is not None and inner.kind in "iu"):
        return bool(dataset.ndim == 1)
    return bool(dataset.dtype.kind in "iu" and dataset.ndim == 2)


def _listed(names: Sequence[str]) -> str:
    return f"the datasets {', '.join(map(repr, names[:20]))}" if names else "no dataset of prompts"


def _decoded(value: bytes) -> str | Flaw:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        return Flaw(f"not UTF-8: byte 0x{value[error.start]:02X} at byte {error.start + 1} of the prompt")
