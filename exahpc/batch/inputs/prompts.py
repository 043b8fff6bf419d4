"""Rows that are plain prompts: lines of text, fields of JSON objects, and what was copied from tables. Pure."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from exahpc.batch.inputs.forms import GROUP, UNREADABLE, Checked, not_utf8, refuse_constant, where
from exahpc.batch.inputs.template import Maker, name_of
from exahpc.batch.lines import Flaw, Row
from exahpc.batch.plan import KINDS

COMPLETION = KINDS.index("completion")


class TextForm:
    """A prompt a line."""

    markers: tuple[bytes, ...] = ()

    def __init__(self, maker: Maker) -> None:
        self._maker = maker

    def check(self, lines: Sequence[bytes], first_row: int) -> Checked:
        n, maker = len(lines), self._maker
        ids = [name_of(row) for row in range(first_row, first_row + n)]
        return Checked([maker.number] * n, ids, [maker.limit] * n)

    def read(self, line: bytes, row: int) -> Row | Flaw:
        return self._maker.row(line.decode(), row)


class _JsonForm(ABC):
    """JSON lines with a prompt in them. `_usual` is fast and knows texts and token ids; `_prompt` knows all."""

    def __init__(self, maker: Maker) -> None:
        self._maker = maker

    @abstractmethod
    def _usual(self, line: bytes) -> Any:
        """The prompt of a line that is like most. Raises one of UNREADABLE for any other line."""

    @abstractmethod
    def _prompt(self, value: Any) -> Any | Flaw:
        """The prompt in a JSON value, whatever it is."""

    def check(self, lines: Sequence[bytes], first_row: int) -> Checked:
        checked = Checked()
        for start in range(0, len(lines), GROUP):
            group, first = lines[start : start + GROUP], first_row + start
            try:
                self._note(checked, list(map(self._usual, group)), first)
            except UNREADABLE:
                for row, line in enumerate(group, first):
                    self._check_one(checked, line, row)
        return checked

    def _note(self, checked: Checked, prompts: list[Any], first_row: int) -> None:
        n, number = len(prompts), self._maker.number
        checked.kinds += [number if type(prompt) is str else COMPLETION for prompt in prompts]
        checked.ids += map(name_of, range(first_row, first_row + n))
        checked.limits += [self._maker.limit] * n

    def _check_one(self, checked: Checked, line: bytes, row: int) -> None:
        try:
            self._note(checked, [self._usual(line)], row)
        except UNREADABLE:
            self._check_slowly(line, row, checked)

    def _check_slowly(self, line: bytes, row: int, checked: Checked) -> None:
        found = self._read_slowly(line, row)
        if isinstance(found, Flaw):
            checked.flawed(found)
        else:
            checked.add(KINDS.index(found.kind), found.custom_id, self._maker.limit)

    def read(self, line: bytes, row: int) -> Row | Flaw:
        try:
            return self._maker.row(self._usual(line), row)
        except UNREADABLE:
            return self._read_slowly(line, row)

    def _read_slowly(self, line: bytes, row: int) -> Row | Flaw:
        try:
            value = json.loads(line, parse_constant=refuse_constant)
        except RecursionError:
            return Flaw("not JSON that can be read: nested too deeply", name_of(row))
        except ValueError as error:
            return not_utf8(line) or Flaw(f"not JSON: {where(error)}", name_of(row))
        found = self._prompt(value)
        reason = found.reason if isinstance(found, Flaw) else self._maker.flaw(found)
        return self._maker.row(found, row) if reason is None else Flaw(reason, name_of(row))


class FieldForm(_JsonForm):
    """An object a line, with the prompt in the field `column`; or the prompt itself as a JSON string or array."""

    def __init__(self, maker: Maker, column: str) -> None:
        super().__init__(maker)
        self._column = column
        self.markers = (json.dumps(column).encode(),)
        line: Any = msgspec.defstruct(
            "line", [("prompt", _usual_type(maker))], rename={"prompt": column}, gc=False
        )
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(line | _usual_type(maker)).decode
        self._line = line

    def _usual(self, line: bytes) -> Any:
        found = self._decode(line)
        return found.prompt if type(found) is self._line else found

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
        fields = [("origin", int), ("prompt", _usual_type(maker))]
        line = msgspec.defstruct("line", fields, array_like=True, gc=False)
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(line).decode

    def check(self, lines: Sequence[bytes], first_row: int) -> Checked:
        checked = super().check(lines, first_row)
        checked.origins = [int(line[1 : line.index(b",")]) for line in lines]
        return checked

    def _usual(self, line: bytes) -> Any:
        return self._decode(line).prompt

    def _prompt(self, value: Any) -> Any | Flaw:
        _, prompt, *fault = value
        return Flaw(fault[0]) if fault else prompt


def _usual_type(maker: Maker) -> Any:
    """Prompts that are fit for `maker` without a further look."""
    text: Any = Annotated[str, Meta(min_length=1)]
    ids: Any = Annotated[list[Annotated[int, Meta(ge=0)]], Meta(min_length=1)]
    return text | ids if maker.takes_ids else text
