"""Rows that are plain prompts: lines of text, fields of JSON objects, and what was copied from tables. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from exahpc.batch.inputs.forms import UNREADABLE, Checked, not_utf8, refuse_constant, where
from exahpc.batch.inputs.template import Maker, name_of
from exahpc.batch.lines import Flaw, Row
from exahpc.batch.plan import KINDS


class TextForm:
    """A prompt a line."""

    markers: tuple[bytes, ...] = ()

    def __init__(self, maker: Maker) -> None:
        self._maker = maker

    def check(self, lines: Sequence[bytes], first_row: int) -> Checked:
        n, maker = len(lines), self._maker
        ids = [f"row-{row}" for row in range(first_row, first_row + n)]
        return Checked([maker.number] * n, ids, [maker.limit] * n)

    def read(self, line: bytes, row: int) -> Row | Flaw:
        return not_utf8(line) or self._maker.row(line.decode(), row)


class _JsonForm:
    """JSON lines with a prompt in them: texts fast, anything else slowly."""

    def __init__(self, maker: Maker) -> None:
        self._maker = maker

    def read(self, line: bytes, row: int) -> Row | Flaw:
        try:
            value = json.loads(line, parse_constant=refuse_constant)
        except RecursionError:
            return Flaw("not JSON that can be read: nested too deeply", name_of(row))
        except ValueError as error:
            return not_utf8(line) or Flaw(f"not JSON: {where(error)}", name_of(row))
        found = self._prompt(value)
        return Flaw(found.reason, name_of(row)) if isinstance(found, Flaw) else self._maker.row(found, row)

    def _prompt(self, value: Any) -> Any | Flaw:
        raise NotImplementedError

    def _check_slowly(self, line: bytes, row: int, checked: Checked) -> None:
        found = self.read(line, row)
        if isinstance(found, Flaw):
            checked.flawed(found)
        else:
            checked.add(KINDS.index(found.kind), found.custom_id, self._maker.limit)


class FieldForm(_JsonForm):
    """An object a line, with the prompt in the field `column`; or the prompt itself as a JSON string or array."""

    def __init__(self, maker: Maker, column: str) -> None:
        super().__init__(maker)
        self._column = column
        self.markers = (json.dumps(column).encode(),)
        line = msgspec.defstruct("line", [("prompt", str)], rename={"prompt": column}, gc=False)
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(line).decode

    def check(self, lines: Sequence[bytes], first_row: int) -> Checked:
        checked, decode, kind, limit = Checked(), self._decode, self._maker.number, self._maker.limit
        for row, line in enumerate(lines, first_row):
            try:
                if decode(line).prompt:
                    checked.add(kind, f"row-{row}", limit)
                    continue
            except UNREADABLE:
                pass
            self._check_slowly(line, row, checked)
        return checked

    def _prompt(self, value: Any) -> Any | Flaw:
        if not isinstance(value, dict):
            return value
        if self._column not in value:
            return Flaw(f"no field {self._column!r}: name the field with the prompt by --column")
        return value[self._column]


class PromptForm(_JsonForm):
    """What `copies` writes: `[origin, prompt]`, or `[origin, null, fault]`."""

    markers = (b",",)

    def __init__(self, maker: Maker) -> None:
        super().__init__(maker)
        self._decode = msgspec.json.Decoder(tuple[int, str]).decode

    def check(self, lines: Sequence[bytes], first_row: int) -> Checked:
        origins: list[int] = []
        checked, decode, kind, limit = (
            Checked(origins=origins),
            self._decode,
            self._maker.number,
            self._maker.limit,
        )
        for row, line in enumerate(lines, first_row):
            try:
                origin, prompt = decode(line)
                origins.append(origin)
                if prompt:
                    checked.add(kind, f"row-{row}", limit)
                    continue
            except UNREADABLE:
                origins.append(int(line[1 : line.index(b",")]))
            self._check_slowly(line, row, checked)
        return checked

    def _prompt(self, value: Any) -> Any | Flaw:
        _, prompt, *fault = value
        return Flaw(fault[0]) if fault else prompt
