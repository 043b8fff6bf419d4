"""A results file, opened for reading."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from exahpc.batch.columns import OUTCOMES, ROW, Block, Ragged, Replica
from exahpc.batch.columns import RAGGED as BLOCK_TEXTS
from exahpc.batch.plan import BatchPlan, InputFile
from exahpc.batch.schema import COLUMNS, FORMAT, RAGGED, VERSION
from exahpc.batch.segments import read_replicas
from exahpc.batch.tally import Summary
from exahpc.errors import BatchError

_READ_ROWS, _READ_BYTES = 16_384, 64 * 2**20
_FAILED_ROWS = 256
_SHOWN = {name: name for name in ("row", "line", "status", "outcome")} | {"named": "custom_id/present"}
_ALL = _SHOWN | {
    name: name if name in COLUMNS else f"time/{name}" for name in ROW.names or () if name not in _SHOWN
}


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
        try:
            self._check()
        except BaseException:
            self._file.close()
            raise

    def _check(self) -> None:
        with self._sound():
            rows = self._attribute("rows")
            for name in (*COLUMNS, *(f"{name}/offsets" for name in RAGGED)):
                if name not in self._file or self._file[name].shape[0] != rows + name.endswith("/offsets"):
                    raise BatchError(
                        f"{self.path} is damaged: dataset {name} is not there for all of its {rows} rows"
                    )

    @contextmanager
    def _sound(self) -> Iterator[None]:
        """What HDF5 raises for a damaged file, named."""
        try:
            yield
        except (OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
            raise BatchError(f"{self.path} is damaged: {error}") from error

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
    def missing(self) -> int:
        """Rows of the batch that it does not hold: it was written before the end."""
        return int(self._attribute("missing"))

    @property
    def inputs(self) -> list[str]:
        """Paths of the inputs."""
        return list(self._file["inputs/path"].asstr()[:])

    def plan(self) -> BatchPlan:
        """As much of the plan as a results file remembers."""
        digests = self._file["inputs/digest"].asstr()[:].tolist()
        counts = np.bincount(self.column("file"), minlength=len(digests)).tolist()
        inputs = (InputFile(*one) for one in zip(self.inputs, repeat(0), repeat(0), digests, counts, strict=False))
        return BatchPlan(
            batch=self.batch, inputs=tuple(inputs), digest=self.digest, rows=self._attribute("rows"), bad=0,
            source_end=0, model=self._attribute("model") or None,
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
        with self._sound():
            values: npt.NDArray[Any] = self._file[name][:]
        return values

    def blocks(self, texts: Sequence[str]) -> Iterator[Block]:
        """All rows, in order, with these texts; of numbers only _SHOWN. Memory does not grow with the file."""
        low, rows = 0, self._attribute("rows")
        while low < rows:
            block = self._block(low, min(rows, low + _READ_ROWS), texts)
            yield block
            low += len(block)

    def whole(self) -> Iterator[Block]:
        """All rows, in order, as they were written; `replica` is a place in `replicas`."""
        low, rows = 0, self._attribute("rows")
        while low < rows:
            block = self._block(low, min(rows, low + _READ_ROWS), tuple(BLOCK_TEXTS), _ALL)
            yield block
            low += len(block)

    def replicas(self) -> list[Replica]:
        """What ran the rows; number 0 is none."""
        return read_replicas(self._file)

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

    def requests(self) -> Iterator[tuple[int, bytes]]:
        """Of failed rows that may be run again. Raises BatchError when they were not kept."""
        with self._sound():
            rows = self._file["failed/row"][:].tolist()
            offsets = self._file["failed/request/offsets"][:].astype(np.int64)
        wanted = int(np.count_nonzero(self.column("outcome") == OUTCOMES["failed"]))
        if len(rows) < wanted:
            raise BatchError(
                f"{self.path} keeps the requests of {len(rows)} of {wanted} failed rows: the input had been "
                f"changed or removed when it was written; run the input again, to another output"
            )
        for low in range(0, len(rows), _FAILED_ROWS):
            some = rows[low : low + _FAILED_ROWS]
            cuts = offsets[low : low + len(some) + 1]
            with self._sound():
                data = self._file["failed/request/data"][int(cuts[0]) : int(cuts[-1])]
            yield from zip(some, Ragged(data, cuts - cuts[0]).pieces(), strict=True)

    def _block(self, low: int, high: int, texts: Sequence[str], shown: Mapping[str, str] = _SHOWN) -> Block:
        """Rows from `low` on: at least one, and no more than fit into _READ_BYTES."""
        with self._sound():
            offsets = {name: self._file[f"{name}/offsets"][low : high + 1].astype(np.int64) for name in texts}
            sizes = np.sum([cuts - cuts[0] for cuts in offsets.values()], axis=0)
            high = low + max(1, int(np.searchsorted(sizes, _READ_BYTES, side="right")) - 1)
            numbers = np.zeros(high - low, ROW)
            for name, dataset in shown.items():
                numbers[name] = self._file[dataset][low:high]
            found = {}
            for name, cuts in offsets.items():
                cuts = cuts[: high - low + 1]
                found[name] = Ragged(self._file[f"{name}/data"][int(cuts[0]) : int(cuts[-1])], cuts - cuts[0])
        return Block(numbers, found)

    def close(self) -> None:
        self._file.close()
