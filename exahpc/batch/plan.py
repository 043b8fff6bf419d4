"""The folder `<output>.parts/` and its manifest: what is run, frozen when the input was validated.

Layout (folders 0700, files 0600):

    manifest.json     BatchPlan; written last, so a folder with a manifest is complete
    index.npy         one entry a row: offset, length, line, crc, kind (INDEX)
    bad.jsonl         the report of bad lines
    journal/          one framed file per agent incarnation, and `source` for rows that are bad in the input
    commits/N         framed events of the Nth broker that opened this batch
    segments/N.h5     committed rows, rolled
    clients/N         claimed by the Nth `exahpc batch run`
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from exahpc.errors import BatchError
from exahpc.wire.folder import write_atomic

VERSION = 1
KINDS = ("chat", "completion")
BAD = 255
"""`kind` of a row that is bad in the input: its error record lies in journal/source."""
SOURCE = "source"

INDEX = np.dtype([("offset", "<u8"), ("length", "<u4"), ("line", "<u4"), ("crc", "<u4"), ("kind", "u1")])
Index = npt.NDArray[np.void]


class BatchPlan(msgspec.Struct, frozen=True):
    """One batch. rows: non-blank lines; bad: rows that are error records from the start; source_end: bytes of
    journal/source; digest: SHA-256 of the whole input; model: the name it was checked against, if known."""

    batch: str
    input: str
    size: int
    mtime_ns: int
    digest: str
    rows: int
    bad: int
    source_end: int
    model: str | None
    version: int = VERSION

    def seed(self, row: int) -> int:
        """63-bit random seed of a row whose body names none: the same input always gives the same text."""
        made = hashlib.blake2b(f"{self.digest}:{row}".encode(), digest_size=8).digest()
        return int.from_bytes(made, "little") >> 1


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
        for folder in (self.journal, self.commits, self.segments, self.clients):
            folder.mkdir(mode=0o700, exist_ok=True)

    @property
    def manifest(self) -> Path:
        return self.path / "manifest.json"

    @property
    def index(self) -> Path:
        return self.path / "index.npy"

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
        """Row index, shape (rows,), dtype INDEX, mapped from disk."""
        return np.load(self.index, mmap_mode="r")  # type: ignore[no-any-return]

    def journal_file(self, name: str) -> Path:
        """Path of a journal named in a message. Raises BatchError for a name that leaves the folder."""
        if "/" in name or name in ("", ".", ".."):
            raise BatchError(f"{name!r} is not the name of a journal")
        return self.journal / name


def digest_of(path: Path) -> str:
    """SHA-256 of a file, in chunks."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def same_input(plan: BatchPlan, path: Path) -> None:
    """Raises BatchError unless `path` still holds the bytes that `plan` was made from."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise BatchError(f"input {path} cannot be read: {error.strerror}") from error
    if found.st_size == plan.size and (found.st_mtime_ns == plan.mtime_ns or digest_of(path) == plan.digest):
        return
    raise BatchError(
        f"input {path} ({found.st_size} bytes) is not the file that this batch began with ({plan.input}, "
        f"{plan.size} bytes, SHA-256 {plan.digest[:12]}…): give that file again, or choose another output"
    )
