"""Results in other forms, in input order: OpenAI's batch output lines, texts only, or a table (`tables`).

In OpenAI's form a row that succeeded has `response` (status_code 200, the body) and `error` null; a failed one has
`response` null and `error`, so no reader can take it for a success.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal, get_args

import msgspec

from exahpc.batch.answers import answer_of
from exahpc.batch.columns import Block, Ragged
from exahpc.batch.failures import error_of
from exahpc.batch.gather import Gathered
from exahpc.batch.plan import Parts
from exahpc.batch.resultsfile import Results
from exahpc.batch.space import whole
from exahpc.batch.tally import Summary, Tally
from exahpc.errors import BatchError

Progress = Callable[[int, int], None]
Form = Literal["openai", "text", "csv", "parquet"]
FORMS: tuple[Form, ...] = get_args(Form)
_ESCAPED = re.compile(rb"[^ !#-\[\]-~]")  # what JSON may write in another way


def form_of(target: Path) -> Form:
    """The form that a file's name asks for; OpenAI's for all that is neither CSV nor Parquet."""
    return {".csv": "csv", ".parquet": "parquet", ".pq": "parquet"}.get(target.suffix.lower(), "openai")  # type: ignore[return-value]


def export(
    source: Path,
    target: Path | BinaryIO,
    progress: Progress = lambda done, total: None,
    form: Form = "openai",
) -> Summary:
    """Write `source`, a results file or a `.parts` folder (what is committed so far), in another form.

    A path appears whole or not at all, 0600. Returns counts of what was written. Raises BatchError, NoRoomError
    when the disk is full.
    """
    if not isinstance(target, Path):
        return _export(source, target, progress, form)
    with whole(target) as file:
        return _export(source, file, progress, form)


def _export(source: Path, file: BinaryIO, progress: Progress, form: Form) -> Summary:
    tally = Tally()
    with opened(source) as (batch, rows, blocks):

        def counted() -> Iterator[Block]:
            for block in blocks(form != "openai"):
                tally.add(block)
                yield block
                progress(int(block.numbers["row"][-1]) + 1, rows)

        if form in ("csv", "parquet"):
            from exahpc.batch import tables  # takes a second to load, and is rarely asked for

            (tables.write_csv if form == "csv" else tables.write_parquet)(file, counted())
        else:
            for block in counted():
                file.write(b"".join(openai_lines(block, batch) if form == "openai" else text_lines(block)))
        progress(rows, rows)
    return tally.summary(source)


@contextmanager
def opened(source: Path) -> Iterator[tuple[str, int, Callable[[bool], Iterator[Block]]]]:
    """(batch, rows of the input, blocks of rows in order): of a results file, or of what a `.parts` folder holds.

    blocks(text): with custom_id and response; text: with the text of the first choice, too.
    """
    if not source.is_dir():
        results = Results(source)
        try:
            yield (
                results.batch,
                results.summary().total,
                lambda text: results.blocks(("custom_id", "response", *(["text"] if text else []))),
            )
        finally:
            results.close()
        return
    parts = Parts(source.absolute())
    plan = parts.plan()
    if plan is None:
        raise BatchError(f"{source} holds no batch: name a results file or a .parts folder")
    with Gathered(parts, plan) as gathered:
        yield plan.batch, plan.rows, lambda text: map(_with_text, gathered.blocks()) if text else gathered.blocks()


def _with_text(block: Block) -> Block:
    texts = [answer_of(body).text for body in block.texts["response"].pieces()]
    return Block(block.numbers, {**block.texts, "text": Ragged.of(texts)})


def openai_lines(block: Block, batch: str) -> list[bytes]:
    """One line a row, each with its line end. Bodies pass as they are: they are JSON already."""
    numbers, bodies = block.numbers, block.texts["response"].pieces()
    head = b'{"id": "batch_req_' + batch.removeprefix("batch_").encode() + b'_%d", "custom_id": %b, '
    good = head + b'"response": {"status_code": 200, "request_id": "row-%d", "body": %b}, "error": null}\n'
    bad = head + b'"response": null, "error": %b}\n'
    return [
        good % (row, custom_id, row, line)
        if outcome == 0
        else bad % (row, custom_id, _error(body, status, number))
        for row, number, status, outcome, custom_id, body, line in zip(
            numbers["row"].tolist(), numbers["line"].tolist(), numbers["status"].tolist(),
            numbers["outcome"].tolist(), json_ids(block), bodies, one_lines(bodies), strict=True,
        )
    ]  # fmt: skip


def text_lines(block: Block) -> list[bytes]:
    """One object a row: row, custom_id, text; null as text, and error, where it failed."""
    numbers = block.numbers
    texts = block.texts["text"].pieces()
    return [
        b'{"row": %d, "custom_id": %b, "text": %b}\n' % (row, custom_id, json_text(text))
        if outcome == 0
        else b'{"row": %d, "custom_id": %b, "text": null, "error": %b}\n'
        % (row, custom_id, _error(body, status, line))
        for row, line, status, outcome, custom_id, body, text in zip(
            numbers["row"].tolist(), numbers["line"].tolist(), numbers["status"].tolist(),
            numbers["outcome"].tolist(), json_ids(block), block.texts["response"].pieces(), texts, strict=True,
        )
    ]  # fmt: skip


def json_ids(block: Block) -> Sequence[bytes]:
    """The custom_id of each row as JSON."""
    named, ids = block.numbers["named"].tolist(), block.texts["custom_id"]
    if _ESCAPED.search(ids.data.tobytes()) is None:
        return [b'"%b"' % text if there else b"null" for there, text in zip(named, ids.pieces(), strict=True)]
    return [json_text(text) if there else b"null" for there, text in zip(named, ids.pieces(), strict=True)]


def json_text(stored: bytes) -> bytes:
    """Text as it is stored, as a JSON string in ASCII."""
    return json.dumps(stored.decode("utf-8", "surrogatepass")).encode()


def one_lines(bodies: list[bytes]) -> list[bytes]:
    """Each body as JSON without line ends: as it is if it can be. What is no JSON becomes a JSON string."""
    together = b",".join(bodies)
    if b"\n" not in together and b"\r" not in together:
        try:
            found = _decode_all(b"[" + together + b"]")
        except (msgspec.DecodeError, RecursionError):
            pass  # or only a lone surrogate, which msgspec refuses
        else:
            if [bytes(one) for one in found] == bodies:  # else some are JSON only together
                return bodies
    return list(map(_one_line, bodies))


def _one_line(body: bytes) -> bytes:
    try:
        if b"\n" not in body and b"\r" not in body:
            _decode(body)
            return body
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        return json.dumps(json.loads(body)).encode()
    except (ValueError, RecursionError):
        return json.dumps(body.decode("utf-8", "replace")).encode()


_decode = msgspec.json.Decoder(msgspec.Raw).decode
_decode_all = msgspec.json.Decoder(list[msgspec.Raw]).decode


def _error(body: bytes, status: int, line: int) -> bytes:
    fields = error_of(body, status)
    fields["code"] = fields["code"] or "row_failed"
    return json.dumps({**fields, "status_code": status, "line": line}).encode()
