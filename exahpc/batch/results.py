"""results.h5: the rows of a batch in input order, in one file that plain h5py and h5dump read (see `schema`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import h5py

from exahpc.batch.columns import Block, Replicas
from exahpc.batch.gather import Gathered
from exahpc.batch.journal import sync_directory
from exahpc.batch.plan import BatchPlan, Parts
from exahpc.batch.resultsfile import Results
from exahpc.batch.retries import Failed, Request
from exahpc.batch.schema import FORMAT, VERSION
from exahpc.batch.segments import write_replicas
from exahpc.batch.space import Sink, left_behind, refusal
from exahpc.batch.tally import Summary, Tally
from exahpc.batch.writer import Writer
from exahpc.errors import BatchError

__all__ = ["Results", "Summary", "Tally", "write_results"]

Progress = Callable[[int, int], None]


def write_results(
    path: Path,
    parts: Parts,
    plan: BatchPlan,
    progress: Progress = lambda done, total: None,
    *,
    partial: bool = False,
    node_hours: float = 0.0,
) -> Summary:
    """Compact all rows into `path`: written beside, fsynced, renamed.

    partial: only the rows that are done; node_hours: used for the batch. Raises BatchError while rows are missing
    unless partial; NoRoomError when the disk is full, without a trace of the attempt.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        for old in left_behind(path, "tmp"):
            old.unlink(missing_ok=True)
        with Gathered(parts, plan, lambda: progress(0, plan.rows)) as gathered:
            if gathered.missing and not partial:
                raise BatchError(
                    f"{gathered.missing} of {plan.rows} rows are not done: run the batch again to finish it, or "
                    f"export {parts.path} as it is"
                )
            failed = Failed(parts, plan)
            try:
                summary = write_rows(temporary, path, gathered, plan, failed, progress, node_hours)
            finally:
                failed.close()
        os.replace(temporary, path)
        sync_directory(path.parent)
        return summary
    except OSError as error:
        raise refusal(error, path) from error
    finally:
        temporary.unlink(missing_ok=True)


class Rows(Protocol):
    """What a results file is written from. missing: rows of the batch that are not among them."""

    @property
    def missing(self) -> int: ...
    @property
    def replicas(self) -> Replicas: ...
    def blocks(self) -> Iterator[Block]:
        """In input order; `replica` is a place in `replicas`, which is complete at the end."""


class Requests(Protocol):
    """Where the requests of failed rows are found."""

    def requests(self, block: Block) -> Iterator[list[Request]]: ...


def write_rows(
    temporary: Path,
    path: Path,
    gathered: Rows,
    plan: BatchPlan,
    failed: Requests,
    progress: Progress,
    node_hours: float,
) -> Summary:
    """Write a results file at `temporary`, for a caller who renames it to `path`. Raises BatchError, OSError."""
    tally, sink = Tally(), Sink(temporary)
    try:
        with h5py.File(sink, "w", rdcc_nbytes=0) as file:  # only whole chunks are written
            writer = Writer(file)
            for block in gathered.blocks():
                tally.add(block)
                writer.add(block, plan.files_of(block.numbers["row"]))
                writer.add_requests(failed.requests(block))
                sink.check()
                progress(int(block.numbers["row"][-1]) + 1, plan.rows)
            writer.close()
            write_replicas(file, gathered.replicas)
            _write_inputs(file, plan)
            summary = replace(tally.summary(path), node_hours=node_hours)
            file.attrs.update(
                format=FORMAT, version=VERSION, batch=plan.batch, rows=summary.total, missing=gathered.missing,
                ok=summary.ok, failed=summary.failed, skipped=summary.skipped,
                commonest_error=summary.commonest_error or "", model=plan.model or "", input=plan.input,
                input_sha256=plan.digest, exahpc=version("exahpc"),
                node_hours=node_hours,
            )  # fmt: skip
    finally:
        sink.close()
    progress(plan.rows, plan.rows)
    return summary


def _write_inputs(file: Any, plan: BatchPlan) -> None:
    text = h5py.string_dtype()
    for name in ("path", "digest"):
        file.create_dataset(f"inputs/{name}", data=[getattr(one, name) for one in plan.inputs], dtype=text)
