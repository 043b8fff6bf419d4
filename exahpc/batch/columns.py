"""Rows as HDF5 columns. Text is uint8 data + offsets: variable-length strings cannot hold NUL.

Columns of n rows:

    row | line | status | prompt_tokens | completion_tokens     (n,)
    custom_id/data, custom_id/offsets (n + 1), custom_id/present
    response/data, response/offsets (n + 1)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from exahpc.batch.journal import Record

NUMBERS = {"row": "<u8", "line": "<u4", "status": "<u2", "prompt_tokens": "<u4", "completion_tokens": "<u4"}
TEXTS = ("custom_id", "response")


@dataclass(frozen=True)
class Outcome:
    """How one row ended. status: 200 for success (`body` is the response), 0 for not run, else `body` is an
    error body. custom_id: UTF-8, None when the line had none."""

    row: int
    line: int
    status: int
    custom_id: bytes | None
    body: bytes
    prompt_tokens: int
    completion_tokens: int

    @property
    def ok(self) -> bool:
        return self.status == 200

    @staticmethod
    def of(record: Record) -> Outcome:
        return Outcome(
            record.row, record.line, record.status, record.custom_id, record.body, record.prompt_tokens,
            record.completion_tokens,
        )  # fmt: skip


class Packer:
    """Appends blocks of rows, in order, to packed columns."""

    def __init__(self, file: Any, rows: int) -> None:
        """Creates the columns, compressed, for exactly `rows` rows in an empty h5py file."""
        self._file, self._at = file, 0
        squeeze: dict[str, Any] = {"compression": "gzip", "compression_opts": 1}
        fixed = {"chunks": (min(rows, 65536),), "shuffle": True, **squeeze}
        for name, kind in NUMBERS.items():
            file.create_dataset(name, (rows,), kind, **fixed)
        file.create_dataset("custom_id/present", (rows,), "u1", **fixed)
        for name in TEXTS:
            file.create_dataset(f"{name}/offsets", (rows + 1,), "<u8", **fixed)
            file.create_dataset(f"{name}/data", (0,), "u1", maxshape=(None,), chunks=(1 << 20,), **squeeze)

    def add(self, block: Sequence[Outcome]) -> None:
        low, high = self._at, self._at + len(block)
        for name, values in arrays(block).items():
            if name.endswith("/data"):
                data = self._file[name]
                end = data.shape[0]
                data.resize((end + len(values),))
                data[end:] = values
            elif name.endswith("/offsets"):
                before = self._file[name][low] if low else np.uint64(0)
                self._file[name][low : high + 1] = values + before
            else:
                self._file[name][low:high] = values
        self._at = high


def arrays(block: Sequence[Outcome]) -> dict[str, npt.NDArray[Any]]:
    """Columns of some rows; offsets start at 0."""
    made: dict[str, npt.NDArray[Any]] = {
        name: np.array([getattr(outcome, name) for outcome in block], kind) for name, kind in NUMBERS.items()
    }
    made["custom_id/present"] = np.array([outcome.custom_id is not None for outcome in block], "u1")
    for name, texts in (
        ("custom_id", [outcome.custom_id or b"" for outcome in block]),
        ("response", [outcome.body for outcome in block]),
    ):
        made[f"{name}/offsets"] = np.concatenate([[0], np.cumsum([len(text) for text in texts])]).astype("<u8")
        made[f"{name}/data"] = np.frombuffer(b"".join(texts), "u1")
    return made


def unpack(file: Any, rows: int, block: int = 8192) -> Iterator[Outcome]:
    """All rows of packed columns, in order, in blocks: memory does not grow with the file."""
    for low in range(0, rows, block):
        high = min(rows, low + block)
        columns = {name: file[name][low:high].tolist() for name in NUMBERS}
        present = file["custom_id/present"][low:high]
        texts = {}
        for name in TEXTS:
            offsets = file[f"{name}/offsets"][low : high + 1].astype(np.int64)
            data = file[f"{name}/data"][int(offsets[0]) : int(offsets[-1])].tobytes()
            cuts = (offsets - offsets[0]).tolist()
            texts[name] = [data[a:b] for a, b in itertools.pairwise(cuts)]
        for i in range(high - low):
            yield Outcome(
                columns["row"][i], columns["line"][i], columns["status"][i],
                texts["custom_id"][i] if present[i] else None, texts["response"][i],
                columns["prompt_tokens"][i], columns["completion_tokens"][i],
            )  # fmt: skip
