"""results.h5: all rows of a batch in input order, in one file that plain h5py reads.

Columns as in `columns` (compressed); attributes: format, version, batch, rows, ok, failed, model, input,
input_sha256, exahpc. Row i is `bytes(response/data[offsets[i]:offsets[i+1]])`; it succeeded when status[i] is 200.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import h5py
import msgspec
import numpy as np

from exahpc.batch.columns import Outcome, Packer, unpack
from exahpc.batch.journal import FrameReader, Record, sync_directory
from exahpc.batch.plan import BatchPlan, Parts
from exahpc.batch.segments import Segment, locations, numbers, pieces
from exahpc.errors import BatchError

FORMAT, VERSION = "exahpc.batch.results", 1
_BLOCK_ROWS, _BLOCK_BYTES = 8192, 64 * 2**20


@dataclass(frozen=True)
class Summary:
    """How a batch ended. commonest_error: of the failed rows; path: the results file."""

    total: int
    ok: int
    failed: int
    commonest_error: str | None
    path: Path

    @property
    def exit_code(self) -> int:
        """0: every row has its answer; 3: some failed; 4: all failed."""
        if not self.failed:
            return 0
        return 3 if self.ok else 4


class Gathered:
    """Everything that is committed in a `.parts` folder, by row: segments first, then what is not rolled yet."""

    def __init__(self, parts: Parts, plan: BatchPlan) -> None:
        self.rows = plan.rows
        self._source = np.full(plan.rows, -1, np.int32)
        """Per row: number of a segment, beyond those of a journal, or -1."""
        self._place = np.zeros(plan.rows, np.int64)
        """Per row: position in its segment, or byte in its journal."""
        self._segments = [Segment(parts, number) for number in numbers(parts)]
        for number, segment in enumerate(self._segments):
            rows = segment.columns["row"].astype(np.int64)
            self._source[rows], self._place[rows] = number, np.arange(len(rows))
        self._journals: list[FrameReader[Record]] = []
        names: dict[str, int] = {}
        for piece in pieces(parts, plan, self._segments[-1].cursor if self._segments else {}):
            if piece.journal not in names:
                names[piece.journal] = len(self._segments) + len(self._journals)
                self._journals.append(FrameReader(parts.journal_file(piece.journal), Record))
            for place, record in locations(parts, piece):
                if self._source[record.row] < 0:
                    self._source[record.row], self._place[record.row] = names[piece.journal], place

    @property
    def missing(self) -> int:
        """Rows that are not committed."""
        return int((self._source < 0).sum())

    def outcomes(self) -> Iterator[Outcome]:
        """Committed rows in input order."""
        for row in np.flatnonzero(self._source >= 0):
            source, place = int(self._source[row]), int(self._place[row])
            if source < len(self._segments):
                yield self._segments[source].outcome(place)
            else:
                yield Outcome.of(self._journals[source - len(self._segments)].one(place))

    def close(self) -> None:
        for segment in self._segments:
            segment.close()
        for journal in self._journals:
            journal.close()


class Tally:
    """Counts outcomes and remembers what went wrong most often."""

    def __init__(self) -> None:
        self.ok = self.failed = 0
        self._reasons: Counter[str] = Counter()

    def add(self, outcome: Outcome) -> None:
        if outcome.ok:
            self.ok += 1
            return
        self.failed += 1
        reason = error_of(outcome)["message"] or f"status {outcome.status}"
        reason = str(reason).removeprefix(f"line {outcome.line}: ")  # alike apart from where
        if len(self._reasons) < 10_000 or reason in self._reasons:
            self._reasons[reason] += 1

    @property
    def commonest(self) -> str | None:
        """ "7 times: reason", or None without failures."""
        if not self._reasons:
            return None
        reason, times = self._reasons.most_common(1)[0]
        return f"{times} times: {reason}" if times > 1 else reason

    def summary(self, path: Path) -> Summary:
        return Summary(self.ok + self.failed, self.ok, self.failed, self.commonest, path)


def error_of(outcome: Outcome) -> dict[str, object]:
    """OpenAI's error fields of a failed row: message, type, param, code; whatever the body was."""
    fields: dict[str, object] = {"message": None, "type": None, "param": None, "code": None}
    try:
        body = msgspec.json.decode(outcome.body)
        found = body["error"]
        fields.update({name: found.get(name) for name in fields})
    except (msgspec.MsgspecError, RecursionError, KeyError, TypeError, AttributeError):
        fields["message"] = outcome.body[:500].decode("utf-8", "replace")
    return fields


def write_results(
    path: Path, parts: Parts, plan: BatchPlan, progress: Callable[[int, int], None] = lambda done, total: None
) -> Summary:
    """Compact all rows into `path`: written beside, fsynced, renamed. Raises BatchError while rows are missing."""
    gathered = Gathered(parts, plan)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if gathered.missing:
            raise BatchError(
                f"{gathered.missing} of {plan.rows} rows are not done: run the batch again to finish it, or "
                f"export {parts.path} as it is"
            )
        os.close(os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600))
        tally = Tally()
        with h5py.File(temporary, "w", locking=False) as file:
            packer = Packer(file, plan.rows)
            block: list[Outcome] = []
            size = 0
            for outcome in gathered.outcomes():
                tally.add(outcome)
                block.append(outcome)
                size += len(outcome.body)
                if len(block) >= _BLOCK_ROWS or size >= _BLOCK_BYTES:
                    packer.add(block)
                    progress(outcome.row + 1, plan.rows)
                    block, size = [], 0
            packer.add(block)
            progress(plan.rows, plan.rows)
            attributes = {
                "format": FORMAT, "version": VERSION, "batch": plan.batch, "rows": plan.rows, "ok": tally.ok,
                "failed": tally.failed, "model": plan.model or "", "input": plan.input,
                "input_sha256": plan.digest, "exahpc": version("exahpc"), "commonest_error": tally.commonest or "",
            }  # fmt: skip
            for name, value in attributes.items():
                file.attrs[name] = value
        with open(temporary, "rb") as done:
            os.fsync(done.fileno())
        os.replace(temporary, path)
        sync_directory(path.parent)
        return tally.summary(path)
    finally:
        gathered.close()
        temporary.unlink(missing_ok=True)


class Results:
    """A results file, opened for reading. Raises BatchError when `path` is none."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = h5py.File(path, "r", locking=False)
        except OSError as error:
            raise BatchError(f"{path} cannot be read as HDF5: {error}") from error
        if self._file.attrs.get("format") != FORMAT or self._file.attrs.get("version") != VERSION:
            self._file.close()
            raise BatchError(f"{path} is not a results file of this version of exahpc")
        self.path = path

    @property
    def batch(self) -> str:
        return str(self._file.attrs["batch"])

    @property
    def digest(self) -> str:
        """SHA-256 of the input."""
        return str(self._file.attrs["input_sha256"])

    def plan(self) -> BatchPlan:
        """As much of the plan as a results file remembers."""
        attrs = self._file.attrs
        return BatchPlan(
            batch=self.batch,
            inputs=(),
            digest=self.digest,
            rows=int(attrs["rows"]),
            bad=0,
            source_end=0,
            model=str(attrs["model"]) or None,
        )

    def summary(self) -> Summary:
        attrs = self._file.attrs
        commonest = str(attrs["commonest_error"]) or None
        return Summary(int(attrs["rows"]), int(attrs["ok"]), int(attrs["failed"]), commonest, self.path)

    def outcomes(self) -> Iterator[Outcome]:
        return unpack(self._file, int(self._file.attrs["rows"]))

    def close(self) -> None:
        self._file.close()
