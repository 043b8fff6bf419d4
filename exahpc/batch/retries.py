"""The requests of failed rows, as OpenAI batch lines: what `batch retry-failed` runs again.

The results file keeps them, so that they can be run again wherever it is, when the input is long gone. Rows that
are bad in the input are not among them: they would only fail again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from exahpc.batch.columns import OUTCOMES, Block
from exahpc.batch.gather import Gathered
from exahpc.batch.inputs.bodies import URLS_OF
from exahpc.batch.inputs.reader import RowReader
from exahpc.batch.lines import Row
from exahpc.batch.plan import BatchPlan, Parts
from exahpc.batch.resultsfile import Results
from exahpc.batch.space import whole
from exahpc.errors import BatchError

_BYTES = 16 * 2**20
Request = tuple[int, bytes]
"""(row, line with its end)"""


class Failed:
    """Reads the requests of failed rows from the inputs of a batch."""

    def __init__(self, parts: Parts, plan: BatchPlan) -> None:
        self._parts, self._plan = parts, plan
        self._reader: RowReader | None = None

    def requests(self, block: Block) -> Iterator[list[Request]]:
        """Of its failed rows, in order, some at a time. Rows whose input was changed or removed are left out."""
        rows: npt.NDArray[np.int64] = block.numbers["row"][failed(block)].astype(np.int64)
        if not len(rows):
            return
        try:
            self._reader = self._reader or RowReader(self._parts, self._plan)
            entries = self._parts.load_index()[rows]
        except (OSError, BatchError):
            return
        sizes = np.cumsum(entries["length"], dtype=np.int64)
        low = 0
        while low < len(rows):
            before = int(sizes[low - 1]) if low else 0
            high = max(low + 1, int(np.searchsorted(sizes, before + _BYTES, side="right")))
            try:
                found = self._reader.rows(rows[low:high].tolist(), entries[low:high])
            except (OSError, BatchError):
                found = []
            yield [(read.row, _line(read.found)) for read in found if isinstance(read.found, Row)]
            low = high

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


def failed(block: Block) -> npt.NDArray[np.bool_]:
    """Which rows were run and have no answer."""
    found: npt.NDArray[np.bool_] = block.numbers["outcome"] == OUTCOMES["failed"]
    return found


def _line(row: Row) -> bytes:
    head = f'{{"custom_id": {json.dumps(row.custom_id)}, "method": "POST", "url": "{URLS_OF[row.kind]}", "body": '
    body = row.body.replace(b"\r", b" ").replace(
        b"\n", b" "
    )  # between tokens only: inside of strings JSON has none
    return head.encode() + body + b"}\n"


def failed_requests(source: Path) -> Iterator[Request]:
    """Of a results file, or of what is committed so far in a `.parts` folder. Raises BatchError when requests of
    failed rows cannot be had any more."""
    if not source.is_dir():
        results = Results(source)
        try:
            yield from results.requests()
        finally:
            results.close()
        return
    parts = Parts(source.absolute())
    plan = parts.plan()
    if plan is None:
        raise BatchError(f"{source} holds no batch: name a results file or a .parts folder")
    inputs = Failed(parts, plan)
    try:
        with Gathered(parts, plan) as gathered:
            for block in gathered.blocks():
                missing = int(np.count_nonzero(failed(block)))
                for some in inputs.requests(block):
                    missing -= len(some)
                    yield from some
                if missing:
                    raise BatchError(
                        f"input {plan.input} was changed or removed: failed rows cannot be read again"
                    )
    finally:
        inputs.close()


def write_failed_requests(source: Path, target: Path) -> int:
    """Write them to a file that appears whole or not at all, 0600. Returns how many."""
    count = 0
    with whole(target) as file:
        for _, line in failed_requests(source):
            file.write(line)
            count += 1
    return count
