"""Validate the inputs of a batch, and keep nothing but the report."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from exahpc.batch.inputs.options import Inputs
from exahpc.batch.plan import KINDS, Parts
from exahpc.batch.source import Progress, index_inputs


@dataclass(frozen=True)
class Counts:
    """Rows that can be run, by what they ask for."""

    files: int
    rows: int
    chats: int
    completions: int


def check_inputs(
    inputs: Inputs,
    *,
    model: str | None = None,
    report: Path | None = None,
    progress: Progress = lambda done, total: None,
) -> Counts:
    """What `exahpc batch run` would find in these inputs.

    model: the name that every row must give; report: the file for the list of all bad rows (None: a new one in the
    system's folder for temporary files; it is removed when no row is bad). What has to be unpacked is unpacked
    there, too. Raises BatchError as `index_inputs`.
    """
    if report is None:
        fd, name = tempfile.mkstemp(prefix="exahpc-bad-rows-", suffix=".jsonl")
        os.close(fd)
        report = Path(name)
    with tempfile.TemporaryDirectory(prefix="exahpc-check-") as folder:
        parts = Parts(Path(folder))
        parts.create()
        plan = index_inputs(inputs, parts, "check", model=model, progress=progress, report=report)
        kinds = parts.load_index()["kind"]
        chats = int(np.count_nonzero(kinds == KINDS.index("chat")))
    report.unlink()
    return Counts(len(plan.inputs), plan.rows, chats, plan.rows - chats)
