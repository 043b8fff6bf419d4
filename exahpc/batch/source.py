"""Index and validate an OpenAI batch file in one pass: before any node is asked for, in memory that hardly grows.

Per row 21 bytes go to the index on disk; 8 bytes (a hash of custom_id) stay in memory to find duplicates.
"""

from __future__ import annotations

import array
import hashlib
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt

from exahpc.batch.inputs.options import Inputs, find_inputs
from exahpc.batch.journal import FrameWriter, Record, error_body
from exahpc.batch.lines import LONGEST_LINE, Flaw, Row, id_bytes, parse_line
from exahpc.batch.plan import BAD, INDEX, KINDS, SOURCE, BatchPlan, InputFile, Parts
from exahpc.errors import BatchError

_BOM = b"\xef\xbb\xbf"
_BLOCK = 16384  # rows per write of the index
_SHOWN = 50  # bad lines listed in the error; all of them are in bad.jsonl

Progress = Callable[[int, int], None]


class _Rejects:
    """Bad rows, written out as they are found: error records, report; only a few stay in memory."""

    def __init__(self, parts: Parts) -> None:
        path = parts.journal_file(SOURCE)
        path.unlink(missing_ok=True)
        self._records = FrameWriter(path)
        self._report_path = parts.bad
        self._report = os.fdopen(os.open(parts.bad, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb")
        self._reasons: Counter[str] = Counter()
        self._shown: list[str] = []
        self.rows = array.array("I")

    @property
    def count(self) -> int:
        return len(self.rows)

    def add(self, row: int, line: int, flaw: Flaw) -> None:
        position = self.count  # bad rows come first in run order
        self.rows.append(row)
        if len(self._reasons) < 1000 or flaw.reason in self._reasons:
            self._reasons[flaw.reason] += 1
        if len(self._shown) < _SHOWN:
            self._shown.append(f"  line {line}: {flaw.reason}")
        self._report.write(msgspec.json.encode({"line": line, "reason": flaw.reason}) + b"\n")
        body = error_body(f"line {line}: {flaw.reason}", kind="invalid_request_error", code="bad_line")
        record = Record(position, line, 400, id_bytes(flaw.custom_id), body, 0, 0, 0, 0, SOURCE)
        self._records.append([msgspec.msgpack.encode(record)])

    def close(self) -> int:
        """Make the records durable; returns the length of journal/source."""
        self._report.close()
        self._records.sync()
        self._records.close()
        return self._records.end

    def story(self, path: Path, rows: int) -> str:
        reason, times = self._reasons.most_common(1)[0]
        head = f"{self.count} of {rows} rows of {path} cannot be run"
        if times > 1:
            head += f" (commonest, {times} times: {reason})"
        hidden = self.count - len(self._shown)
        more = [f"  ... and {hidden} more, all listed in {self._report_path}"] if hidden else []
        advice = "Correct them, or skip bad lines: each then becomes an error record."
        return "\n".join([f"{head}:", *self._shown, *more, advice])


def _lines(file: BinaryIO, digest: hashlib._Hash) -> Iterator[tuple[int, int, bytes]]:
    """(line number, offset, line without its end) of each non-blank line; of an over-long one only the start."""
    offset, number = 0, 0
    while line := file.readline(LONGEST_LINE + 2):
        digest.update(line)
        start, number, piece = offset, number + 1, line
        offset += len(line)
        while not piece.endswith(b"\n") and (piece := file.readline(1 << 20)):
            digest.update(piece)
            offset += len(piece)
        whole = offset == start + len(line)
        if number == 1 and line.startswith(_BOM):
            line, start = line[len(_BOM) :], start + len(_BOM)
        if whole:
            line = line.rstrip(b"\r\n")
        if line.strip():
            yield number, start, line


class _IndexFile:
    """index.npy, written in blocks; the header is filled in at the end, when the number of rows is known."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._file = os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb")
        self.rows = 0
        self._entries: list[tuple[int, int, int, int, int]] = []
        self._header(1 << 50)
        self._start = self._file.tell()

    def _header(self, rows: int) -> None:
        # NumPy pads the header for growth of the first axis, so a smaller number never makes it longer
        header = {"descr": np.lib.format.dtype_to_descr(INDEX), "fortran_order": False, "shape": (rows,)}
        np.lib.format.write_array_header_1_0(self._file, header)

    def add(self, entry: tuple[int, int, int, int, int]) -> None:
        self._entries.append(entry)
        self.rows += 1
        if len(self._entries) == _BLOCK:
            self._flush()

    def _flush(self) -> None:
        self._file.write(np.array(self._entries, INDEX).tobytes())
        self._entries.clear()

    def close(self) -> None:
        self._flush()
        self._file.seek(0)
        self._header(self.rows)
        if self._file.tell() != self._start:
            raise BatchError("NumPy changed the layout of .npy headers: report this version of NumPy")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


def index_inputs(
    inputs: Inputs,
    parts: Parts,
    batch: str,
    *,
    model: str | None = None,
    skip_invalid: bool = False,
    progress: Progress = lambda done, total: None,
) -> BatchPlan:
    """Validate all inputs and write index, error records and report into `parts`; the manifest is the caller's.

    model: the served name, when known: a row that names another is bad. skip_invalid: go on with the good rows;
    each bad one becomes an error record. progress(bytes done, bytes in all) is called about every 16k rows.
    Raises BatchError naming every bad line (the first 50, and the file with all) unless skip_invalid.
    """
    (path,) = inputs.paths
    hashes = array.array("q")
    digest = hashlib.sha256()
    rejects = _Rejects(parts)
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise BatchError(f"input {path} cannot be read: {error.strerror}") from error
    with file:
        before = os.fstat(file.fileno())
        index = _IndexFile(parts.index)
        for number, offset, line in _lines(file, digest):
            row, found = index.rows, parse_line(line)
            if isinstance(found, Row) and model is not None and found.model not in (None, model):
                reason = f"model {found.model!r} is not served here: this deployment serves {model!r}"
                found = Flaw(reason, found.custom_id)
            hashes.append(hash(found.custom_id if found.custom_id is not None else (row, "no id")))
            if isinstance(found, Flaw):
                rejects.add(row, number, found)
            kind = BAD if isinstance(found, Flaw) else KINDS.index(found.kind)
            index.add((offset, len(line), number, zlib.crc32(line), kind))
            if row % _BLOCK == 0:
                progress(file.tell(), before.st_size)
        index.close()
        after = os.fstat(file.fileno())
    if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise BatchError(f"input {path} changed while it was read: run again when nothing writes to it")
    if not index.rows:
        raise BatchError(f"input {path} holds no rows: one JSON object a line is needed")
    progress(before.st_size, before.st_size)
    _find_duplicates(path, parts, np.frombuffer(hashes, np.int64), rejects)
    source_end = rejects.close()
    _write_order(parts, index.rows, rejects.rows)
    if rejects.count and not skip_invalid:
        raise BatchError(rejects.story(path, index.rows))
    file_of = InputFile(str(path), before.st_size, before.st_mtime_ns, digest.hexdigest(), index.rows)
    return BatchPlan(
        batch=batch,
        inputs=(file_of,),
        digest=digest.hexdigest(),
        rows=index.rows,
        bad=rejects.count,
        source_end=source_end,
        model=model,
        options=inputs.options,
    )


def _write_order(parts: Parts, rows: int, bad: array.array[int]) -> None:
    parts.order.unlink(missing_ok=True)
    if bad:
        good = np.setdiff1d(np.arange(rows, dtype=np.uint32), np.array(bad, np.uint32))
        np.save(parts.order, np.concatenate([np.array(bad, np.uint32), good]))


def index_file(path: Path, parts: Parts, batch: str, *, model: str | None = None) -> BatchPlan:
    """`index_inputs` of one file of OpenAI batch lines."""
    return index_inputs(find_inputs([path]), parts, batch, model=model)


def _find_duplicates(path: Path, parts: Parts, hashes: npt.NDArray[np.int64], rejects: _Rejects) -> None:
    """Reject every later row whose custom_id appeared before. Equal hashes are compared by their text."""
    order = np.argsort(hashes, kind="stable")
    again = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
    if not len(again):
        return
    index = np.load(parts.index, mmap_mode="r+")
    firsts: dict[str, int] = {}
    with open(path, "rb") as file:
        for row in np.unique(np.concatenate([order[again], order[again + 1]])):
            entry = index[row]
            file.seek(int(entry["offset"]))
            custom_id, line = parse_line(file.read(int(entry["length"]))).custom_id, int(entry["line"])
            if custom_id is None:
                continue
            first = firsts.setdefault(custom_id, line)
            if first != line and entry["kind"] != BAD:
                reason = f"custom_id {custom_id!r} on line {line} was used before, on line {first}"
                rejects.add(int(row), line, Flaw(reason, custom_id))
                index["kind"][row] = BAD
    index.flush()
