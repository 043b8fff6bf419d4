"""Index and validate the inputs of a batch in one pass: before any node is asked for, in memory that hardly grows.

On disk: 21 bytes a row, and 4 when the run order is not the input order. In memory, at most 16 bytes a row: to
find repeated custom_ids, then to find the run order, then nothing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import msgspec
import numpy as np

from exahpc.batch.inputs.blocks import Block, blocks
from exahpc.batch.inputs.copies import copy, form_in_place
from exahpc.batch.inputs.detect import Found, detect
from exahpc.batch.inputs.duplicates import Ids
from exahpc.batch.inputs.forms import RowForm, not_utf8
from exahpc.batch.inputs.options import Inputs, find_inputs
from exahpc.batch.inputs.order import TRAITS, Traits, costs, prefixes, run_order
from exahpc.batch.inputs.reader import RowReader, row_form
from exahpc.batch.journal import sync_directory
from exahpc.batch.lines import LONGEST_LINE, Flaw
from exahpc.batch.npy import NpyWriter
from exahpc.batch.plan import BAD, INDEX, BatchPlan, InputFile, Parts, one_digest
from exahpc.batch.rejects import Rejects
from exahpc.errors import BatchError

Progress = Callable[[int, int], None]
"""(bytes of the inputs that are done, all)."""
_CHUNK = 4 << 20
_STEP = 4096


def index_inputs(
    inputs: Inputs,
    parts: Parts,
    batch: str,
    *,
    model: str | None = None,
    skip_invalid: bool = False,
    progress: Progress = lambda done, total: None,
    report: Path | None = None,
) -> BatchPlan:
    """Validate all inputs; write index, run order, error records and report into `parts`. The manifest is the
    caller's.

    model: the served name, when known: a row that does not name it is bad. skip_invalid: go on with the good rows,
    each bad one becomes an error record. progress is called several times a second; report: where all bad
    rows are listed, when not in `parts`. Raises BatchError for inputs
    that cannot be read, and, unless skip_invalid, naming every bad row: the first 50, and the file with all.
    """
    pass_ = _Pass(inputs, parts, model, progress, Rejects(parts, inputs.paths, report or parts.bad))
    files = tuple(pass_.index(number, found) for number, found in enumerate(pass_.found))
    pass_.close()
    plan = BatchPlan(
        batch=batch,
        inputs=files,
        digest=one_digest([file.digest for file in files]),
        rows=pass_.index_file.items,
        bad=0,
        source_end=0,
        model=model,
        options=inputs.options,
    )
    if not plan.rows:
        raise BatchError(f"input {plan.input} holds no rows: at least one is needed")
    return pass_.finished(plan, skip_invalid)


def index_file(path: Path, parts: Parts, batch: str, *, model: str | None = None) -> BatchPlan:
    """`index_inputs` of one file that is read as its name and content tell."""
    return index_inputs(find_inputs([path]), parts, batch, model=model)


class _Pass:
    """The one pass over all inputs, and what it leaves."""

    def __init__(
        self, inputs: Inputs, parts: Parts, model: str | None, progress: Progress, rejects: Rejects
    ) -> None:
        self._inputs, self._parts, self._model, self._progress = inputs, parts, model, progress
        try:
            self.found = [detect(path, inputs.options) for path in inputs.paths]
            self._total = sum(path.stat().st_size for path in inputs.paths)
        except OSError as error:
            raise BatchError(f"input {error.filename} cannot be read: {error.strerror}") from error
        self._done = 0
        self._ids = Ids(any(found.format in ("requests", "json") for found in self.found))
        self._rejects = rejects
        self.index_file = NpyWriter(parts.index, INDEX)
        self._traits = NpyWriter(parts.path / "traits.npy", TRAITS)

    def _beat(self) -> None:
        self._progress(self._done, self._total)

    def index(self, number: int, found: Found) -> InputFile:
        """Index one input. Raises BatchError when it changes meanwhile."""
        path, options = self._inputs.paths[number], self._inputs.options
        before, rows = path.stat(), self.index_file.items
        form, name = form_in_place(found), None
        digest = hashlib.sha256()
        if form is None:
            name = f"{number + 1:06d}.jsonl"
            self._add_to(digest, path)
            form = copy(path, found, options, self._parts.copies / name, self._beat)
        unit = "row" if found.format in ("json", "parquet", "hdf5") else "line"
        rows_form = row_form(form, options, self._model)
        with open(self._parts.copies / name if name else path, "rb") as file:
            for block in blocks(file, None if name else digest):
                self._add(number, unit, block, rows_form)
                self._progress(self._done + (before.st_size if name else file.tell()), self._total)
        after = path.stat()
        if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise BatchError(f"input {path} changed while it was read: run again when nothing writes to it")
        self._done += before.st_size
        count = self.index_file.items - rows
        return InputFile(
            str(path), before.st_size, before.st_mtime_ns, digest.hexdigest(), count, form, name, unit
        )

    def _add_to(self, digest: hashlib._Hash, path: Path) -> None:
        with open(path, "rb") as file:
            while data := file.read(_CHUNK):
                digest.update(data)
                self._beat()

    def _add(self, number: int, unit: str, block: Block, form: RowForm) -> None:
        first, lines = self.index_file.items, block.lines
        lengths = np.fromiter(map(len, lines), np.int64, len(lines))
        checked = form.check(lines, first)
        flaws = checked.flaws
        if not block.utf8:
            flaws |= {i: flaw for i, line in enumerate(lines) if (flaw := not_utf8(line)) is not None}
        for i in np.flatnonzero(lengths > LONGEST_LINE).tolist():
            flaws[i] = Flaw(f"longer than {LONGEST_LINE} bytes")
        entries = np.empty(len(lines), INDEX)
        entries["offset"], entries["length"] = block.offsets, lengths
        entries["line"] = block.numbers if checked.origins is None else checked.origins
        entries["crc"] = np.fromiter(map(crc32, lines), np.uint32, len(lines))
        entries["kind"] = np.frombuffer(bytes(checked.kinds), np.uint8)
        entries["kind"][list(flaws)] = BAD
        traits = np.empty(len(lines), TRAITS)
        traits["cost"] = costs(lengths, np.array(checked.limits, np.int64))
        traits["near"], traits["far"] = prefixes(lines, form.markers)
        for i, flaw in sorted(flaws.items()):
            self._rejects.add(first + i, number, unit, int(entries["line"][i]), flaw)
            checked.ids[i] = flaw.custom_id or f"row {first + i} has none"
        self._ids.add(checked.ids)
        self.index_file.append(entries)
        self._traits.append(traits)

    def close(self) -> None:
        """All rows are there."""
        self.index_file.close()
        self._traits.close()

    def finished(self, plan: BatchPlan, skip_invalid: bool) -> BatchPlan:
        """The plan with what is known when all rows were seen."""
        self._parts.order.unlink(missing_ok=True)
        self._reject_repeated(plan)
        end, bad = self._rejects.close(), self._rejects.count
        if bad and not skip_invalid:
            raise BatchError(self._rejects.story(plan.input, plan.rows))
        ordered = self._write_order(plan.rows)
        self._traits.path.unlink()
        sync_directory(self._parts.copies)
        return msgspec.structs.replace(plan, bad=bad, source_end=end, ordered=ordered)

    def _reject_repeated(self, plan: BatchPlan) -> None:
        """Reject every later row whose custom_id appeared before. Equal hashes are compared by their text."""
        rows = self._ids.doubtful()
        if not len(rows):
            return
        reader, firsts = RowReader(self._parts, plan), dict[str, tuple[int, str]]()
        index = np.load(self._parts.index, mmap_mode="r+")
        for step in range(0, len(rows), _STEP):
            some = rows[step : step + _STEP]
            self._beat()
            numbers = plan.files_of(some).tolist()
            for number, read in zip(numbers, reader.rows(some.tolist(), index[some]), strict=True):
                custom_id, unit = read.found.custom_id, plan.inputs[number].unit
                place = f"{unit} {read.line}" + (f" of {plan.inputs[number].path}" if len(plan.inputs) > 1 else "")
                if custom_id is None:
                    continue
                first, before = firsts.setdefault(custom_id, (read.row, place))
                if first != read.row and index["kind"][read.row] != BAD:
                    reason = f"custom_id {custom_id!r} was used before, on {before}"
                    self._rejects.add(read.row, number, unit, read.line, Flaw(reason, custom_id))
                    index["kind"][read.row] = BAD
        reader.close()
        index.flush()

    def _write_order(self, rows: int) -> bool:
        """Whether it is not the order of the input."""

        def read(first: int, last: int) -> Traits:
            self._beat()
            return self._traits.read(first, last)

        order = run_order(rows, read)
        bad = np.array(self._rejects.rows, np.uint32)
        if order is None and not len(bad):
            return False
        if order is None:
            order = np.arange(rows, dtype=np.uint32)
        if len(bad):
            good = np.ones(rows, bool)
            good[bad] = False
            order = np.concatenate([bad, order[good[order]]])
        with os.fdopen(os.open(self._parts.order, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            np.save(file, order)
            file.flush()
            os.fsync(file.fileno())
        return True
