"""The folder `<output>.parts/` and its manifest: what is run, frozen when the input was validated.

A *row* counts in the order of the inputs, a *position* in run order. Leases, commits and journals speak of
positions; the index, seeds and results of rows. The rows that are bad in the input have the first positions.

Layout (folders 0700, files 0600):

    manifest.json     BatchPlan; written last, so a folder with a manifest is complete
    index.npy         one entry a row: offset, length, line, crc, kind (INDEX)
    order.npy         run order: the row at each position (u4); not there when the order is the input's
    rows/N.jsonl      rows of the Nth input, when that one cannot be read in place
    bad.jsonl         the report of bad lines
    journal/          one framed file per agent incarnation, and `source` for rows that are bad in the input
    commits/N         framed events of the Nth broker that opened this batch
    segments/N.h5     committed rows, rolled
    clients/N         claimed by the Nth `exahpc batch run`
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from exahpc.batch.inputs.options import InputOptions, Inputs
from exahpc.errors import BatchError
from exahpc.wire.folder import write_atomic

VERSION = 2
KINDS = ("chat", "completion")
BAD = 255
"""`kind` of a row that is bad in the input: its error record lies in journal/source."""
SOURCE = "source"
Form = Literal["request", "text", "field", "prompt"]
"""How a row is written: an OpenAI batch line; a line of text; an object with the prompt in a field; JSON
`[line, prompt]` or `[line, null, fault]`, for what is no text."""

INDEX = np.dtype([("offset", "<u8"), ("length", "<u4"), ("line", "<u4"), ("crc", "<u4"), ("kind", "u1")])
Index = npt.NDArray[np.void]


class InputFile(msgspec.Struct, frozen=True):
    """One input. size, mtime_ns, digest (SHA-256): of the file as the user gave it; rows: how many came from it;
    form: how its rows are written; copy: name below rows/ when it is not read in place; unit: what `line` of the
    index counts in this file, "line" or "row"."""

    path: str
    size: int
    mtime_ns: int
    digest: str
    rows: int
    form: Form = "request"
    copy: str | None = None
    unit: str = "line"


class BatchPlan(msgspec.Struct, frozen=True):
    """One batch. digest: SHA-256 of all inputs; bad: rows that are error records from the start; source_end: bytes
    of journal/source; model: the name it was checked against, if known; options: how the inputs were read;
    ordered: whether the run order is not the input's, None when an earlier version wrote it."""

    batch: str
    inputs: tuple[InputFile, ...]
    digest: str
    rows: int
    bad: int
    source_end: int
    model: str | None
    options: InputOptions = InputOptions()
    version: int = VERSION
    ordered: bool | None = None

    @property
    def input(self) -> str:
        """What the rows come from, for people."""
        first, *more = [file.path for file in self.inputs] or ["unknown"]
        return f"{first} and {len(more)} more" if more else first

    @property
    def bad_positions(self) -> list[tuple[int, int]]:
        """Ranges of positions that are error records from the start."""
        return [(0, self.bad)] if self.bad else []

    def seed(self, row: int) -> int:
        """63-bit random seed of a row whose body names none: the same input always gives the same text, in
        whatever order it is run."""
        made = hashlib.blake2b(f"{self.digest}:{row}".encode(), digest_size=8).digest()
        return int.from_bytes(made, "little") >> 1

    def files_of(self, rows: npt.ArrayLike) -> npt.NDArray[np.intp]:
        """Which of `inputs` each of these rows comes from."""
        ends = np.cumsum([file.rows for file in self.inputs])
        return np.searchsorted(ends, rows, side="right")


class Parts:
    """Paths inside one `.parts` folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @staticmethod
    def of(output: Path) -> Parts:
        """The folder that belongs to an output file."""
        output = output.absolute()
        return Parts(output.with_name(output.name + ".parts"))

    def create(self) -> None:
        self.path.mkdir(mode=0o700, exist_ok=True)
        self.path.chmod(0o700)
        for folder in (self.journal, self.commits, self.segments, self.clients, self.copies):
            folder.mkdir(mode=0o700, exist_ok=True)

    @property
    def manifest(self) -> Path:
        return self.path / "manifest.json"

    @property
    def index(self) -> Path:
        return self.path / "index.npy"

    @property
    def order(self) -> Path:
        return self.path / "order.npy"

    @property
    def copies(self) -> Path:
        return self.path / "rows"

    @property
    def bad(self) -> Path:
        return self.path / "bad.jsonl"

    @property
    def journal(self) -> Path:
        return self.path / "journal"

    @property
    def commits(self) -> Path:
        return self.path / "commits"

    @property
    def segments(self) -> Path:
        return self.path / "segments"

    @property
    def clients(self) -> Path:
        return self.path / "clients"

    def save(self, plan: BatchPlan) -> None:
        write_atomic(self.manifest, msgspec.json.encode(plan), durable=True)

    def plan(self) -> BatchPlan | None:
        """The manifest, or None when this folder was never completed. Raises BatchError when unreadable."""
        try:
            plan = msgspec.json.decode(self.manifest.read_bytes(), type=BatchPlan)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise BatchError(
                f"{self.manifest} cannot be read ({error}): remove {self.path} and run again"
            ) from error
        if plan.version != VERSION:
            raise BatchError(
                f"{self.path} has layout version {plan.version}, this exahpc writes {VERSION}: finish it with the "
                f"version that began it, or choose another output"
            )
        return plan

    def load_index(self) -> Index:
        """Row index, shape (rows,), dtype INDEX, mapped from disk. In input order. Raises BatchError."""
        try:
            return self._mapped(self.index)
        except FileNotFoundError:
            raise self._damaged(self.index, "is gone") from None

    def load_order(self) -> npt.NDArray[np.uint32] | None:
        """The row at each position, shape (rows,), mapped from disk; None when positions are rows. Raises
        BatchError."""
        try:
            return self._mapped(self.order)
        except FileNotFoundError:
            return None

    def check(self, plan: BatchPlan) -> None:
        """Raises BatchError unless index and run order may be those of `plan`."""
        self.check_order(plan)
        self._check_length(self.index, self.load_index(), plan)

    def check_order(self, plan: BatchPlan) -> None:
        """As `check`, of the run order alone: records in journals cannot be told apart without it."""
        order = self.load_order()
        if order is None and plan.ordered:
            raise self._damaged(self.order, "is gone")
        if order is not None:
            self._check_length(self.order, order, plan)

    def _check_length(self, path: Path, found: npt.NDArray[Any], plan: BatchPlan) -> None:
        if len(found) != plan.rows:
            raise self._damaged(path, f"tells of {len(found)} rows, the batch has {plan.rows}")

    def _mapped(self, path: Path) -> npt.NDArray[Any]:
        try:
            return np.load(path, mmap_mode="r")  # type: ignore[no-any-return]
        except (EOFError, ValueError) as error:
            raise self._damaged(path, f"is damaged ({error})") from error

    def _damaged(self, path: Path, what: str) -> BatchError:
        return BatchError(f"{path} {what}: restore it, or remove {self.path} and run the batch again")

    def rows_of(self, positions: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """The rows at these positions."""
        order = self.load_order()
        wanted = np.asarray(positions, np.int64)
        return wanted if order is None else order[wanted].astype(np.int64)

    def rows_file(self, file: InputFile) -> Path:
        """Where the rows of an input are read from."""
        return Path(file.path) if file.copy is None else self.copies / file.copy

    def journal_file(self, name: str) -> Path:
        """Path of a journal named in a message. Raises BatchError for a name that leaves the folder."""
        if "/" in name or name in ("", ".", ".."):
            raise BatchError(f"{name!r} is not the name of a journal")
        return self.journal / name


def digest_of(path: Path) -> str:
    """SHA-256 of a file, in chunks."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def same_inputs(plan: BatchPlan, inputs: Inputs | None = None) -> BatchPlan:
    """The plan with the places where its inputs lie now (None: where they were).

    Raises BatchError unless they still hold the bytes that `plan` was made from, in the same order, and are
    read in the same way.
    """
    if inputs is None:
        inputs = Inputs(tuple(Path(file.path) for file in plan.inputs), plan.options)
    if inputs.options != plan.options:
        raise BatchError(
            f"this batch began with {_told(plan.options)}, now it is {_told(inputs.options)}: give the same "
            f"options, or choose another output"
        )
    paths = inputs.paths
    if len(paths) != len(plan.inputs):
        raise BatchError(
            f"{len(paths)} inputs are named, this batch began with {len(plan.inputs)} ({plan.input}): name the "
            f"same, or choose another output"
        )
    files = tuple(_same_input(file, path) for file, path in zip(plan.inputs, paths, strict=True))
    return msgspec.structs.replace(plan, inputs=files)


def _same_input(file: InputFile, path: Path) -> InputFile:
    try:
        found = os.stat(path)
    except OSError as error:
        raise BatchError(f"input {path} cannot be read: {error.strerror}") from error
    if found.st_size != file.size or (found.st_mtime_ns != file.mtime_ns and digest_of(path) != file.digest):
        raise BatchError(
            f"input {path} ({found.st_size} bytes) is not the file that this batch began with ({file.path}, "
            f"{file.size} bytes, SHA-256 {file.digest[:12]}…): give that file again, or choose another output"
        )
    return msgspec.structs.replace(file, path=str(path.absolute()), mtime_ns=found.st_mtime_ns)


def _told(options: InputOptions) -> str:
    return msgspec.json.encode(options).decode()


def one_digest(digests: Sequence[str]) -> str:
    """SHA-256 that stands for all inputs of a batch: that of the only one, or of all of theirs."""
    return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()
