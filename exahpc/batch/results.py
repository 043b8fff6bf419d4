"""results.h5: the rows of a batch in input order, in one file that plain h5py and h5dump read (see `schema`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from exahpc.batch.answers import NO_ANSWER, answer_of
from exahpc.batch.columns import OUTCOMES, ROW, Block, Ragged, ends
from exahpc.batch.gather import Gathered
from exahpc.batch.journal import sync_directory
from exahpc.batch.plan import BatchPlan, Parts
from exahpc.batch.reasons import Reasons, reason_of
from exahpc.batch.schema import COLUMNS, FORMAT, RAGGED, VERSION
from exahpc.batch.segments import write_replicas
from exahpc.batch.space import Sink, refusal
from exahpc.errors import BatchError

_CHUNK_BYTES = 256 * 1024
_READ_ROWS, _READ_BYTES = 16_384, 64 * 2**20
_TIMES = ("queued", "started", "first_token", "ended")
_SHOWN = {name: name for name in ("row", "line", "status", "outcome")} | {"named": "custom_id/present"}

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Summary:
    """How a batch ended. failed: with those that were skipped; commonest_error: of the failed rows; path: the
    results file; node_hours: used for it."""

    total: int
    ok: int
    failed: int
    commonest_error: str | None
    path: Path
    skipped: int = 0
    node_hours: float = 0.0

    @property
    def exit_code(self) -> int:
        """0: every row has its answer; 3: some failed; 4: all failed."""
        if not self.failed:
            return 0
        return 3 if self.ok else 4


class Tally:
    """Counts rows by outcome and remembers what went wrong most often."""

    def __init__(self) -> None:
        self._counts = np.zeros(len(OUTCOMES), np.int64)
        self._reasons = Reasons()

    def add(self, block: Block) -> None:
        """block: with its responses."""
        self._counts += np.bincount(block.numbers["outcome"], minlength=len(OUTCOMES))
        failed = np.flatnonzero(block.numbers["outcome"])
        if len(failed):
            bad = block.numbers[failed]
            bodies = block.texts["response"].take(failed).pieces()
            for body, status, line in zip(bodies, bad["status"].tolist(), bad["line"].tolist(), strict=True):
                self._reasons.add(reason_of(body, status).removeprefix(f"line {line}: "))  # alike apart from where

    @property
    def commonest(self) -> str | None:
        """ "7 times: reason", or None without failures."""
        for reason, times in self._reasons.most(1):
            return f"{times} times: {reason}" if times > 1 else reason
        return None

    def summary(self, path: Path) -> Summary:
        ok, failed, skipped = map(int, self._counts)
        return Summary(ok + failed + skipped, ok, failed + skipped, self.commonest, path, skipped)


def write_results(
    path: Path,
    parts: Parts,
    plan: BatchPlan,
    progress: Progress = lambda done, total: None,
    *,
    partial: bool = False,
    node_hours: float = 0.0,
) -> Summary:
    """Compact all rows into `path`: written beside, fsynced, renamed.

    partial: only the rows that are done; node_hours: used for the batch. Raises BatchError while rows are missing
    unless partial; NoRoomError when the disk is full, without a trace of the attempt.
    """
    for old in path.parent.glob(f".{path.name}.*.tmp"):
        old.unlink(missing_ok=True)  # of a process that was killed
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with Gathered(parts, plan) as gathered:
            if gathered.missing and not partial:
                raise BatchError(
                    f"{gathered.missing} of {plan.rows} rows are not done: run the batch again to finish it, or "
                    f"export {parts.path} as it is"
                )
            summary = _write(temporary, path, gathered, plan, progress, node_hours)
        os.replace(temporary, path)
        sync_directory(path.parent)
        return summary
    except OSError as error:
        raise refusal(error, path) from error
    finally:
        temporary.unlink(missing_ok=True)


def _write(
    temporary: Path, path: Path, gathered: Gathered, plan: BatchPlan, progress: Progress, node_hours: float
) -> Summary:
    tally, sink = Tally(), Sink(temporary)
    try:
        with h5py.File(sink, "w") as file:
            writer = _Writer(file)
            for block in gathered.blocks():
                tally.add(block)
                writer.add(block, plan.files_of(block.numbers["row"]))
                sink.check()
                progress(int(block.numbers["row"][-1]) + 1, plan.rows)
            writer.close()
            write_replicas(file, gathered.replicas)
            _write_inputs(file, plan)
            summary = replace(tally.summary(path), node_hours=node_hours)
            file.attrs.update(
                format=FORMAT, version=VERSION, batch=plan.batch, rows=summary.total, missing=gathered.missing,
                ok=summary.ok, failed=summary.failed, skipped=summary.skipped,
                commonest_error=summary.commonest_error or "", model=plan.model or "", input=plan.input,
                input_sha256=plan.digest, exahpc=version("exahpc"),
                node_hours=node_hours,
            )  # fmt: skip
    finally:
        sink.close()
    progress(plan.rows, plan.rows)
    return summary


def _write_inputs(file: Any, plan: BatchPlan) -> None:
    text = h5py.string_dtype()
    for name in ("path", "digest"):
        file.create_dataset(f"inputs/{name}", data=[getattr(one, name) for one in plan.inputs], dtype=text)


class _Growing:
    """A dataset that grows by whole chunks: compressed, with a checksum for each."""

    def __init__(self, file: Any, name: str, kind: Any, unit: str, about: str) -> None:
        size = np.dtype(kind).itemsize
        self._chunk = _CHUNK_BYTES // size
        self._set = file.create_dataset(
            name, (0,), kind, maxshape=(None,), chunks=(self._chunk,), compression="gzip", compression_opts=1,
            shuffle=size > 1, fletcher32=True,
        )  # fmt: skip
        self._set.attrs["about"] = about
        if unit:
            self._set.attrs["unit"] = unit
        self._waiting: list[npt.NDArray[Any]] = []
        self._count = 0

    def add(self, values: npt.NDArray[Any]) -> None:
        self._waiting.append(values)
        self._count += len(values)
        if self._count >= self._chunk:
            self._put(self._count - self._count % self._chunk)

    def _put(self, count: int) -> None:
        values = np.concatenate(self._waiting)
        at = self._set.shape[0]
        self._set.resize((at + count,))
        self._set[at:] = values[:count]
        self._waiting, self._count = [values[count:].copy()], len(values) - count

    def close(self) -> None:
        if self._count:
            self._put(self._count)


class _Writer:
    """Appends blocks of rows to the datasets of `schema`."""

    def __init__(self, file: Any) -> None:
        self._columns = {name: _Growing(file, name, *column) for name, column in COLUMNS.items()}
        self._data = {name: _Growing(file, f"{name}/data", *column) for name, column in RAGGED.items()}
        self._offsets = {
            name: _Growing(
                file, f"{name}/offsets", "<u8", "", "where each begins in data, and the end of the last"
            )
            for name in RAGGED
        }
        self._ends = dict.fromkeys(RAGGED, 0)
        for offsets in self._offsets.values():
            offsets.add(np.zeros(1, "<u8"))

    def add(self, block: Block, files: npt.NDArray[np.intp]) -> None:
        numbers, count = block.numbers, len(block)
        good = (numbers["outcome"] == 0).tolist()
        bodies = block.texts["response"].pieces()
        answers = [answer_of(body) if ok else NO_ANSWER for body, ok in zip(bodies, good, strict=True)]
        made = {
            "file": files, "custom_id/present": numbers["named"],
            "finish_reason": np.array([answer.reason for answer in answers], "u1"),
            **{f"time/{name}": numbers[name] for name in _TIMES},
        }  # fmt: skip
        for name, column in self._columns.items():
            column.add(made[name] if name in made else numbers[name])
        rated = [answer.logprobs for answer in answers]
        texts = {
            **block.texts,
            "text": Ragged.of([answer.text for answer in answers]),
            "logprobs": Ragged(
                np.array([value for values in rated for value in values], "<f4"), ends(map(len, rated), count)
            ),
        }
        for name, text in texts.items():
            self._data[name].add(text.data)
            self._offsets[name].add(text.offsets[1:] + self._ends[name])
            self._ends[name] += int(text.offsets[-1])

    def close(self) -> None:
        for growing in (*self._columns.values(), *self._data.values(), *self._offsets.values()):
            growing.close()


class Results:
    """A results file, opened for reading. Raises BatchError when `path` is none, is truncated or damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = h5py.File(path, "r", locking=False)
        except OSError as error:
            raise BatchError(f"{path} cannot be read as HDF5, or is not whole: {error}") from error
        found = self._file.attrs.get("format"), self._file.attrs.get("version")
        if found != (FORMAT, VERSION):
            self._file.close()
            raise BatchError(f"{path} is not a results file of this version of exahpc")
        rows = self._attribute("rows")
        for name in (*COLUMNS, *(f"{name}/offsets" for name in RAGGED)):
            there = name in self._file and self._file[name].shape[0] - name.endswith("/offsets")
            if there is False or there != rows:
                self._file.close()
                raise BatchError(f"{path} is damaged: dataset {name} is not there for all of its {rows} rows")

    def _attribute(self, name: str) -> Any:
        value = self._file.attrs[name]
        return value.item() if isinstance(value, np.generic) else value

    @property
    def batch(self) -> str:
        return str(self._attribute("batch"))

    @property
    def digest(self) -> str:
        """SHA-256 of the input."""
        return str(self._attribute("input_sha256"))

    @property
    def inputs(self) -> list[str]:
        """Paths of the inputs."""
        return list(self._file["inputs/path"].asstr()[:])

    def plan(self) -> BatchPlan:
        """As much of the plan as a results file remembers."""
        return BatchPlan(
            batch=self.batch, inputs=(), digest=self.digest, rows=self._attribute("rows"), bad=0, source_end=0,
            model=self._attribute("model") or None,
        )  # fmt: skip

    def summary(self) -> Summary:
        rows, ok, failed, skipped = map(self._attribute, ("rows", "ok", "failed", "skipped"))
        return Summary(
            rows,
            ok,
            failed,
            self._attribute("commonest_error") or None,
            self.path,
            skipped,
            self._attribute("node_hours"),
        )

    def column(self, name: str) -> npt.NDArray[Any]:
        """A dataset with a value a row, whole."""
        values: npt.NDArray[Any] = self._file[name][:]
        return values

    def blocks(self, texts: Sequence[str]) -> Iterator[Block]:
        """All rows, in order, with these texts; of numbers only _SHOWN. Memory does not grow with the file."""
        low, rows = 0, self._attribute("rows")
        while low < rows:
            block = self._block(low, min(rows, low + _READ_ROWS), texts)
            yield block
            low += len(block)

    def failed(self) -> Iterator[tuple[npt.NDArray[np.intp], Block]]:
        """(places, rows) of those that are not ok, in order, with custom_id and response."""
        places = np.flatnonzero(self.column("outcome"))
        while len(places):
            block = self._block(
                int(places[0]), min(int(places[0]) + _READ_ROWS, int(places[-1]) + 1), ("custom_id", "response")
            )
            end = int(np.searchsorted(places, places[0] + len(block)))
            yield places[:end], block.take(places[:end] - places[0])
            places = places[end:]

    def _block(self, low: int, high: int, texts: Sequence[str]) -> Block:
        """Rows from `low` on: at least one, and no more than fit into _READ_BYTES."""
        try:
            offsets = {name: self._file[f"{name}/offsets"][low : high + 1].astype(np.int64) for name in texts}
            sizes = np.sum([cuts - cuts[0] for cuts in offsets.values()], axis=0)
            high = low + max(1, int(np.searchsorted(sizes, _READ_BYTES, side="right")) - 1)
            numbers = np.zeros(high - low, ROW)
            for name, dataset in _SHOWN.items():
                numbers[name] = self._file[dataset][low:high]
            found = {}
            for name, cuts in offsets.items():
                cuts = cuts[: high - low + 1]
                found[name] = Ragged(self._file[f"{name}/data"][int(cuts[0]) : int(cuts[-1])], cuts - cuts[0])
            return Block(numbers, found)
        except OSError as error:
            raise BatchError(f"{self.path} is damaged: {error}") from error

    def close(self) -> None:
        self._file.close()
