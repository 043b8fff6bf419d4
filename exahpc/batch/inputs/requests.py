"""Rows that are requests already: lines of OpenAI's batch files. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import msgspec

from exahpc.batch.inputs.bodies import URLS_OF, line_type
from exahpc.batch.inputs.forms import GROUP, UNREADABLE, Checked, not_utf8, refuse_constant, where
from exahpc.batch.lines import LONGEST_LINE, Flaw, Row
from exahpc.batch.plan import KINDS
from exahpc.errors import RequestError
from exahpc.openai.body import Kind, load, printable
from exahpc.openai.reading import read_request
from exahpc.openai.request import Request

URLS: dict[str, Kind] = {url: kind for kind, url in URLS_OF.items()}
_ANY_MODEL = "any"
_MOST = 2**31 - 1
_kind, _custom_id = attrgetter("kind"), attrgetter("custom_id")


class _Line(msgspec.Struct, gc=False):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Seed(msgspec.Struct, gc=False):
    seed: int | None = None


_read_line = msgspec.json.Decoder(_Line).decode
_read_seed = msgspec.json.Decoder(_Seed).decode


class RequestForm:
    """model: the served name that every body must give; None: not known, not checked."""

    markers = (b'"messages"', b'"prompt"')

    def __init__(self, model: str | None) -> None:
        self._model = model
        self._decode = msgspec.json.Decoder(line_type(model)).decode

    def check(self, lines: Sequence[bytes], first_row: int) -> Checked:
        checked = Checked()
        for start in range(0, len(lines), GROUP):
            group = lines[start : start + GROUP]
            try:
                self._note(checked, list(map(self._decode, group)))
            except UNREADABLE:
                for line in group:
                    self._check_one(checked, line)
        return checked

    def _note(self, checked: Checked, found: list[Any]) -> None:
        checked.kinds += map(_kind, found)
        checked.ids += map(_custom_id, found)
        checked.limits += [line.body.max_tokens or line.body.limit or 0 for line in found]

    def _check_one(self, checked: Checked, line: bytes) -> None:
        try:
            self._note(checked, [self._decode(line)])
        except UNREADABLE:
            self._check_slowly(checked, line)

    def _check_slowly(self, checked: Checked, line: bytes) -> None:
        row = parse_request(line)
        if isinstance(row, Flaw):
            checked.flawed(row)
            return
        try:
            request = validate(row.kind, row.body, self._model)
        except RequestError as error:
            checked.flawed(Flaw(f"body.{error.message}", row.custom_id))
            return
        checked.add(KINDS.index(row.kind), row.custom_id, request.max_tokens or 0)

    def read(self, line: bytes, row: int) -> Row | Flaw:
        return parse_request(line)


def validate(kind: Kind, body: bytes, model: str | None) -> Request:
    """What the agent will check of a body apart from lengths. model None: any, or none. Raises RequestError."""
    if model is None:
        fields = load(body)
        model = fields["model"] = _ANY_MODEL if fields.get("model") is None else fields["model"]
        body = json.dumps(fields).encode()
    request = read_request(kind, body, model, _MOST)
    if request.stream:
        raise RequestError("stream: must be absent or false in a batch")
    return request


def parse_request(line: bytes) -> Row | Flaw:
    """One line without its line end, as a request whose body is not looked into."""
    if len(line) > LONGEST_LINE:
        return Flaw(f"the line is longer than {LONGEST_LINE} bytes")
    try:
        found = _read_line(line)
    except UNREADABLE:
        return _parse_slowly(line)
    return _row(found.custom_id, found.method, found.url, bytes(found.body))


def _row(custom_id: str, method: str, url: str, body: bytes) -> Row | Flaw:
    kind = URLS.get(url)
    if method != "POST":
        return Flaw(f"'method' must be \"POST\", not {printable(method)}", custom_id)
    if kind is None:
        return Flaw(f"'url' must be one of {', '.join(URLS)}, not {printable(url)}", custom_id)
    if body[:1] != b"{":
        return Flaw(f"'body' must be a JSON object, not {_named(json.loads(body))}", custom_id)
    return Row(kind, custom_id, body, _seed(body))


def _seed(body: bytes) -> int | None:
    if b'"seed"' not in body:
        return None
    try:
        return _read_seed(body).seed
    except UNREADABLE:  # a lone surrogate; or no seed at all, which validation tells
        seed = json.loads(body).get("seed")
        return seed if isinstance(seed, int) and not isinstance(seed, bool) else None


def _parse_slowly(line: bytes) -> Row | Flaw:
    """Tells exactly what is wrong; reads lone surrogates, which msgspec refuses."""
    try:
        found = json.loads(line, parse_constant=refuse_constant)
    except RecursionError:
        return Flaw("not JSON that can be read: nested too deeply")
    except ValueError as error:
        return not_utf8(line) or Flaw(f"not JSON: {where(error)}")
    if not isinstance(found, dict):
        return Flaw(f"must be a JSON object, not {_named(found)}")
    given = found.get("custom_id")
    custom_id = given if isinstance(given, str) else None
    for name in ("custom_id", "method", "url"):
        if name not in found:
            return Flaw(f"'{name}' is missing", custom_id)
        if not isinstance(found[name], str):
            return Flaw(f"'{name}' must be a string, not {_named(found[name])}", custom_id)
    if "body" not in found:
        return Flaw("'body' is missing", custom_id)
    return _row(found["custom_id"], found["method"], found["url"], json.dumps(found["body"]).encode())


def _named(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "an array"}
    return names.get(type(value), "an object")
