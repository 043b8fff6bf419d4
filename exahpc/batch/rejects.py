"""Rows that are bad in the input, written out as they are found; only a few stay in memory."""

from __future__ import annotations

import array
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from exahpc.batch.journal import FrameWriter, Record, error_body
from exahpc.batch.lines import Flaw, id_bytes
from exahpc.batch.plan import SOURCE, Parts

_SHOWN = 50  # in the error; all are in the report
_REASONS = 1000
_GROUP = 256


class Rejects:
    """Error records in journal/source, the list of all in `report`. The nth that is found has position n in run
    order.

    rows: those that were found, 4 bytes each.
    """

    def __init__(self, parts: Parts, paths: Sequence[Path], report: Path) -> None:
        path = parts.journal_file(SOURCE)
        path.unlink(missing_ok=True)
        self._paths = paths
        self._records = FrameWriter(path)
        self._report_path = report
        self._report = os.fdopen(os.open(report, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb")
        self._reasons: Counter[str] = Counter()
        self._shown: list[str] = []
        self._group: list[bytes] = []
        self.rows = array.array("I")

    @property
    def count(self) -> int:
        return len(self.rows)

    def add(self, row: int, file: int, unit: str, line: int, flaw: Flaw) -> None:
        """file: number of the input; unit: what `line` counts there."""
        position = len(self.rows)
        self.rows.append(row)
        if len(self._reasons) < _REASONS or flaw.reason in self._reasons:
            self._reasons[flaw.reason] += 1
        place = f"{unit} {line}"
        if len(self._shown) < _SHOWN:
            where = f"{self._paths[file]} {place}" if len(self._paths) > 1 else place
            self._shown.append(f"  {where}: {flaw.reason}")
        told = {"file": str(self._paths[file]), "line": line, "row": row, "reason": flaw.reason}
        self._report.write(msgspec.json.encode(told) + b"\n")
        body = error_body(f"{place}: {flaw.reason}", kind="invalid_request_error", code="bad_line")
        record = Record(position, line, 400, id_bytes(flaw.custom_id), body, 0, 0, 0, 0, SOURCE)
        self._group.append(msgspec.msgpack.encode(record))
        if len(self._group) >= _GROUP:
            self._flush()

    def _flush(self) -> None:
        self._records.append(self._group)
        self._group = []

    def close(self) -> int:
        """Make the records durable; returns the length of journal/source."""
        self._report.close()
        self._flush()
        self._records.sync()
        self._records.close()
        return self._records.end

    def story(self, what: str, rows: int) -> str:
        """What is wrong with these inputs, for the user."""
        reason, times = self._reasons.most_common(1)[0]
        head = f"{self.count} of {rows} rows of {what} cannot be run"
        if times > 1:
            head += f" (commonest, {times} times: {reason})"
        hidden = self.count - len(self._shown)
        more = [f"  ... and {hidden} more"] if hidden else []
        advice = (
            f"All are listed in {self._report_path}. Correct them, or run with --skip-invalid: each then becomes "
            f"an error record."
        )
        return "\n".join([f"{head}:", *self._shown, *more, advice])
