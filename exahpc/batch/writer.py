"""Appends blocks of rows to the datasets of a results file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from exahpc.batch.answers import NO_ANSWER, answer_of
from exahpc.batch.columns import Block, Ragged, ends
from exahpc.batch.retries import Request
from exahpc.batch.schema import COLUMNS, RAGGED, REQUEST

_CHUNK_BYTES = 256 * 1024
_TIMES = ("queued", "started", "first_token", "ended")


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


class Writer:
    """Appends blocks of rows to the datasets of `schema`."""

    def __init__(self, file: Any) -> None:
        self._columns = {name: _Growing(file, name, *column) for name, column in COLUMNS.items()}
        self._failed = _Growing(file, "failed/row", "<u8", "", "rows that may be run again")
        texts = {**RAGGED, "failed/request": REQUEST}
        self._data = {name: _Growing(file, f"{name}/data", *column) for name, column in texts.items()}
        self._offsets = {
            name: _Growing(
                file, f"{name}/offsets", "<u8", "", "where each begins in data, and the end of the last"
            )
            for name in texts
        }
        self._ends = dict.fromkeys(texts, 0)
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
            self._add_text(name, text)

    def add_requests(self, requests: Iterable[list[Request]]) -> None:
        """Of failed rows."""
        for some in requests:
            self._failed.add(np.array([row for row, _ in some], "<u8"))
            self._add_text("failed/request", Ragged.of([line for _, line in some]))

    def _add_text(self, name: str, text: Ragged) -> None:
        self._data[name].add(text.data)
        self._offsets[name].add(text.offsets[1:] + self._ends[name])
        self._ends[name] += int(text.offsets[-1])

    def close(self) -> None:
        self._failed.close()
        for growing in (*self._columns.values(), *self._data.values(), *self._offsets.values()):
            growing.close()
