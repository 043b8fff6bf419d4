"""Rows of a batch, read again from its inputs when their turn comes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from exahpc.batch.inputs.detect import PROMPT_FIELD
from exahpc.batch.inputs.forms import RowForm
from exahpc.batch.inputs.options import InputOptions
from exahpc.batch.inputs.prompts import FieldForm, PromptForm, TextForm
from exahpc.batch.inputs.requests import RequestForm
from exahpc.batch.inputs.template import Maker
from exahpc.batch.lines import Flaw, Row
from exahpc.batch.plan import BatchPlan, Form, Index, Parts

_OPEN = 16
"""Input files that stay open."""
_GAP = 4096
"""Bytes between two rows that are read and thrown away rather than skipped."""
_SPAN = 1 << 20
_ROWS = 4096


def row_form(form: Form, options: InputOptions, model: str | None) -> RowForm:
    """Raises BatchError when no prompt can be run with these options."""
    match form:
        case "request":
            return RequestForm(model)
        case "text":
            return TextForm(Maker(options.template, model))
        case "field":
            return FieldForm(Maker(options.template, model), options.column or PROMPT_FIELD)
        case "prompt":
            return PromptForm(Maker(options.template, model))


@dataclass(frozen=True, slots=True)
class Read:
    """One row of the input. row: its number; found: the request, or why it is not what was validated."""

    row: int
    line: int
    found: Row | Flaw


class RowReader:
    """Reads rows by position. Files are opened when they are needed."""

    def __init__(self, parts: Parts, plan: BatchPlan) -> None:
        self._parts, self._plan = parts, plan
        self._index, self._order = parts.load_index(), parts.load_order()
        self._forms: dict[Form, RowForm] = {}
        self._fds: dict[int, int] = {}

    def read(self, first: int, last: int, most_bytes: int) -> list[Read]:
        """Rows at positions from `first` on: at least one, at most `most_bytes` of input if more. They must not be
        bad ones. Raises OSError and BatchError when an input cannot be read at all."""
        last = min(last, first + _ROWS)
        rows = np.arange(first, last) if self._order is None else self._order[first:last].astype(np.int64)
        entries: Index = self._index[rows]
        taken = int(np.searchsorted(np.cumsum(entries["length"], dtype=np.int64), most_bytes)) + 1
        return self.rows(rows[:taken].tolist(), entries[:taken])

    def rows(self, rows: Sequence[int], entries: Index) -> list[Read]:
        """The given rows, whose index entries are `entries`. What lies together is read together."""
        found: list[Read] = []
        files = self._plan.files_of(rows).tolist()
        offsets, lengths = entries["offset"].tolist(), entries["length"].tolist()
        lines, crcs = entries["line"].tolist(), entries["crc"].tolist()
        i = 0
        while i < len(rows):
            start, end, after = offsets[i], offsets[i] + lengths[i], i + 1
            while (
                after < len(rows)
                and files[after] == files[i]
                and end <= offsets[after] <= end + _GAP
                and offsets[after] + lengths[after] - start <= _SPAN
            ):
                end, after = offsets[after] + lengths[after], after + 1
            data = os.pread(self._fd(files[i]), end - start, start)
            for j in range(i, after):
                line = data[offsets[j] - start : offsets[j] - start + lengths[j]]
                found.append(Read(rows[j], lines[j], self._row(files[j], rows[j], lines[j], line, crcs[j])))
            i = after
        return found

    def _row(self, number: int, row: int, line: int, data: bytes, crc: int) -> Row | Flaw:
        file = self._plan.inputs[number]
        if crc32(data) != crc:
            return Flaw(f"{file.unit} {line} of {file.path} changed after the batch began")
        if file.form not in self._forms:
            self._forms[file.form] = row_form(file.form, self._plan.options, self._plan.model)
        return self._forms[file.form].read(data, row)

    def _fd(self, number: int) -> int:
        fd = self._fds.pop(number, None)
        if fd is None:
            while len(self._fds) >= _OPEN:
                os.close(self._fds.pop(next(iter(self._fds))))
            fd = os.open(self._parts.rows_file(self._plan.inputs[number]), os.O_RDONLY)
        self._fds[number] = fd  # last used, last closed
        return fd

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.popitem()[1])
