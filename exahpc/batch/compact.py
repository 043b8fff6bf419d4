"""From the folder of a batch to one file: for a batch that nobody finishes, or a look at what is done so far."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from exahpc.batch.client import Owner
from exahpc.batch.plan import BatchPlan, Parts
from exahpc.batch.results import Summary, write_results
from exahpc.batch.space import left_behind
from exahpc.batch.usage import node_hours
from exahpc.errors import BatchBusy, BatchError

Progress = Callable[[int, int], None]
_SUFFIX = ".parts"


def compact(
    folder: Path,
    output: Path | None = None,
    *,
    partial: bool = False,
    keep_parts: bool = False,
    progress: Progress = lambda done, total: None,
) -> Summary:
    """Write the results file of the batch in a `.parts` folder.

    output: None for the one that the folder belongs to; then the folder is removed afterwards, unless keep_parts.
    partial: only the rows that are done, to another file; the batch can still go on. Raises BatchError while rows
    are missing unless partial, when there is something at the output, and while a client works on the batch.
    """
    parts, plan = _begun(folder)
    own = parts.path.with_name(parts.path.name.removesuffix(_SUFFIX))
    path = (output or own).absolute()
    if path.exists():
        raise BatchError(f"{path} exists: choose another output, or remove it")
    if path == own and partial:
        raise BatchError(f"{own} is where the whole batch will be written: name another output for a part of it")
    if path != own:
        return write_results(path, parts, plan, progress, partial=partial, node_hours=node_hours(parts))
    owner = Owner(parts)

    def beat(done: int, total: int) -> None:
        owner.beat()
        progress(done, total)

    try:
        summary = write_results(path, parts, plan, beat, node_hours=node_hours(parts))
    finally:
        owner.release()
    if not keep_parts:
        discard(parts.path)
    return summary


def discard(folder: Path) -> None:
    """Remove a folder whose rows are all in the results file. It disappears whole; never raises."""
    gone = folder.with_name(f".{folder.name}.{os.getpid()}.gone")
    with contextlib.suppress(OSError):
        os.rename(folder, gone)
    with contextlib.suppress(OSError):
        for left in left_behind(folder, "gone"):
            shutil.rmtree(left, ignore_errors=True)


def discard_left(parts: Parts, results: BatchPlan) -> None:
    """Remove what a process that was killed had still to discard of this batch.

    results: as its results file tells it; when that holds a part of the rows only, the folder stays, as it does
    while another process works on it. Raises BatchError when the folder cannot be read.
    """
    plan = parts.plan()
    if plan is None:
        if not parts.path.exists():
            discard(parts.path)
        return
    if (plan.batch, plan.rows) == (results.batch, results.rows):
        try:
            Owner(parts)
        except (BatchBusy, OSError):
            return
        discard(parts.path)


def _begun(folder: Path) -> tuple[Parts, BatchPlan]:
    if not folder.name.endswith(_SUFFIX):
        folder = folder.with_name(folder.name + _SUFFIX)
    parts = Parts(folder.absolute())
    plan = parts.plan() if folder.is_dir() else None
    if plan is None:
        raise BatchError(
            f"{folder} holds no batch: name the results file that is to be made, or its .parts folder"
        )
    return parts, plan
