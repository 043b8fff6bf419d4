"""What `exahpc batch run` does: validate or resume, let the broker run it, roll segments, write results.h5.

Every step may be killed; the same command goes on from what is on disk.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from exahpc.batch import commits
from exahpc.batch.client import Owner
from exahpc.batch.compact import discard, discard_left
from exahpc.batch.inputs.options import Inputs, find_inputs, refuse_output
from exahpc.batch.plan import BatchPlan, Parts, digest_of, one_digest, same_inputs
from exahpc.batch.results import Results, Summary, write_results
from exahpc.batch.segments import Roller
from exahpc.batch.source import index_inputs
from exahpc.batch.space import BY_ITSELF, NoRoomError, refusal
from exahpc.batch.usage import node_hours
from exahpc.errors import BatchCancelled, BatchError, LinkError
from exahpc.wire.messages import BatchCancel, BatchOpen, BatchQuery, BatchState, BatchStatus, Refused

__all__ = ["Prepared", "Roller", "Summary", "drive", "finish", "prepare"]

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
Question = BatchOpen | BatchQuery | BatchCancel
_ROLL_SECONDS = 5.0


def _quiet(done: int, total: int) -> None:
    pass


@dataclass(frozen=True)
class Prepared:
    """A validated batch that this process owns. resumed: an earlier run began it; summary: it is done already
    (then there is nothing to own); keep_parts: the folder stays when all is in the results file."""

    plan: BatchPlan
    parts: Parts
    output: Path
    owner: Owner | None
    resumed: bool
    summary: Summary | None = None
    keep_parts: bool = False

    def beat(self) -> None:
        """Say that this client lives. Raises BatchError when another one took over."""
        if self.owner is not None:
            self.owner.beat()

    @property
    def question(self) -> BatchOpen:
        """What to tell the broker."""
        return BatchOpen(self.plan.batch, str(self.parts.path))

    def release(self) -> None:
        """Let another client go on. Call when this one ends, however it ends."""
        if self.owner is not None:
            self.owner.release()


def prepare(
    inputs: Inputs | Path,
    output: Path,
    *,
    served_name: str | None = None,
    skip_invalid: bool = False,
    keep_parts: bool = False,
    progress: Progress = _quiet,
) -> Prepared:
    """Validate `inputs` for `output`, or find what an earlier run of the same command left.

    served_name: the model's name, when known; rows that name another model are bad. skip_invalid: bad rows become
    error records. keep_parts: leave the `.parts` folder when the results are written. progress(bytes done, bytes
    in all). Raises BatchError with all bad lines, for another input than the one that `output` was begun with, and
    while another client works on `output`.
    """
    if isinstance(inputs, Path):
        inputs = find_inputs([inputs])
    with _told(output):
        prepared = _prepare(inputs, output.absolute(), served_name, skip_invalid, progress)
        if prepared.summary is not None and not keep_parts:
            discard_left(prepared.parts, prepared.plan)
        return replace(prepared, keep_parts=keep_parts)


@contextmanager
def _told(output: Path) -> Iterator[None]:
    """Disk full, quota, permissions: errors of the user's folder, not of ours."""
    try:
        yield
    except OSError as error:
        raise refusal(error, Path(error.filename or output)) from error


def _prepare(
    inputs: Inputs, output: Path, served_name: str | None, skip_invalid: bool, progress: Progress
) -> Prepared:
    refuse_output(output, inputs.paths)
    if not output.parent.is_dir():
        raise BatchError(f"folder {output.parent} of the output does not exist: make it, or choose another output")
    parts = Parts.of(output)
    if output.exists():
        return _finished(output, inputs, parts)
    parts.create()
    owner = Owner(parts)
    if output.exists():  # another client has finished since we looked
        owner.release()
        return _finished(output, inputs, parts)

    def beat(done: int, total: int) -> None:
        owner.beat()
        progress(done, total)

    try:
        plan = parts.plan()
        resumed = plan is not None
        if plan is not None:
            plan = _moved(parts, plan, inputs)
            parts.check(plan)
            if served_name is not None and plan.model not in (None, served_name):
                raise BatchError(
                    f"{parts.path} was begun for model {plan.model!r}, this deployment serves {served_name!r}: "
                    f"choose another output"
                )
        else:
            if any(parts.commits.iterdir()) or any(parts.segments.iterdir()):
                raise BatchError(
                    f"{parts.path} holds results but no manifest: remove it, or choose another output"
                )
            batch = f"batch_{os.urandom(12).hex()}"
            plan = index_inputs(inputs, parts, batch, model=served_name, skip_invalid=skip_invalid, progress=beat)
            parts.save(plan)
        return Prepared(plan, parts, output, owner, resumed)
    except BaseException:
        owner.release()
        raise


def _moved(parts: Parts, plan: BatchPlan, inputs: Inputs) -> BatchPlan:
    """The plan, with the place where its inputs lie now. Raises BatchError for another input."""
    now = same_inputs(plan, inputs)
    if now != plan:
        parts.save(now)
    return now


def _finished(output: Path, inputs: Inputs, parts: Parts) -> Prepared:
    """For an output that is complete already. Raises BatchError when it is something else."""
    try:
        results = Results(output)
    except BatchError as error:
        raise BatchError(f"{output} exists and is not a results file: choose another output ({error})") from error
    try:
        plan = parts.plan()
        if plan is not None and plan.batch == results.batch:
            same_inputs(plan, inputs)
        elif results.digest != one_digest([digest_of(path) for path in inputs.paths]):
            raise BatchError(f"{output} holds the results of another batch: choose another output, or remove it")
        return Prepared(results.plan(), parts, output, None, True, results.summary())
    finally:
        results.close()


def drive(
    prepared: Prepared,
    ask: Callable[[Question], BatchState | Refused],
    report: Callable[[BatchStatus | None], None],
    *,
    over: Callable[[], None] = lambda: None,
    progress: Progress = _quiet,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    poll_seconds: float = 0.5,
) -> Summary:
    """Have the batch run to its end and return what came out.

    ask: one question to the broker; a LinkError means that the head is away, and the question is asked again.
    report: the status after each answer, None while the head is away. over: called when all rows are done, before
    the results file is written: no node is needed any more. progress(rows written, rows in all): of that file.
    Raises BatchCancelled when the batch was cancelled, BatchError when it failed; what is done stays on disk.
    """
    if prepared.summary is not None:
        return prepared.summary
    with _told(prepared.output):
        roller = Roller(prepared.parts, prepared.plan, beat=prepared.beat)
    question: Question = prepared.question
    roll_at, waits = clock(), False
    while True:
        prepared.beat()
        try:
            answer = ask(question)
        except LinkError:
            report(None)
            sleep(poll_seconds)
            continue
        if isinstance(answer, Refused):
            if isinstance(question, BatchOpen):
                raise BatchError(f"the broker refuses this batch: {answer.reason}")
            question = prepared.question  # a broker that does not know it: open it there
            continue
        question = BatchQuery(prepared.plan.batch)
        report(answer.status)
        match answer.status.state:
            case "finished":
                over()
                return finish(prepared, roller, used=answer.status.node_hours, progress=progress)
            case "cancelled":
                raise BatchCancelled(
                    f"batch {prepared.plan.batch} was cancelled: the same command goes on with it"
                )
            case "failed":
                note = answer.status.note or "the log of the head tells more"
                raise BatchError(f"batch {prepared.plan.batch} failed: {note}; the same command goes on with it")
        if clock() >= roll_at:
            with _told(prepared.output):
                waits = _rolled(roller, waits)
            roll_at = clock() + _ROLL_SECONDS
        sleep(poll_seconds)


def _rolled(roller: Roller, waits: bool) -> bool:
    """Roll what is due. A disk that is full, or fails for a while, can wait: answers are safe in the journals, and
    `finish` tells what is wrong for good. Returns whether it waits."""
    try:
        roller.roll()
    except BatchError as error:
        if not isinstance(error.__cause__, OSError):
            raise
        if not waits:
            told = error.but(BY_ITSELF) if isinstance(error, NoRoomError) else error
            log.warning("answers are not gathered into segments for now: %s", told)
        return True
    return False


def complete(prepared: Prepared) -> bool:
    """Whether every row is committed already, so that only the results file is to be written."""
    done = prepared.plan.bad
    for _, _, event in commits.read(prepared.parts.commits):
        if isinstance(event, commits.Commit):
            done += event.size
    return done == prepared.plan.rows


def finish(
    prepared: Prepared,
    roller: Roller | None = None,
    *,
    used: float | None = None,
    progress: Progress = _quiet,
) -> Summary:
    """Roll what is left and write the results file. used: node-hours, when they are known better than the folder
    tells. Raises BatchError while rows are missing."""

    def beat(done: int, total: int) -> None:
        prepared.beat()
        progress(done, total)

    with _told(prepared.output):
        roller = roller or Roller(prepared.parts, prepared.plan, beat=prepared.beat)
        roller.roll(everything=True)
        hours = node_hours(prepared.parts) if used is None else used
        summary = write_results(prepared.output, prepared.parts, prepared.plan, beat, node_hours=hours)
        prepared.release()
        if not prepared.keep_parts:
            discard(prepared.parts.path)
    return summary
