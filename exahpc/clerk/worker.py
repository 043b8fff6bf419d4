"""One submitted batch, from its input to its files: what `exahpc batch run` does, told through `state.json`.

It may be killed at any moment; another worker goes on from what is on disk.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import time
from pathlib import Path

import msgspec

from exahpc.batch import run as running
from exahpc.batch.inputs.options import InputOptions, Inputs
from exahpc.batch.noted import note_deployment
from exahpc.batch.plan import Parts
from exahpc.batch.run import Prepared, Question
from exahpc.batch.space import BY_ITSELF, NO_ROOM, NoRoomError, refusal
from exahpc.clerk.publish import publish
from exahpc.clerk.queue import AGAIN, DONE
from exahpc.clerk.refusals import InputRefused, check_endpoint, refuse_packed, refused
from exahpc.deployment.spec import Deployment
from exahpc.errors import BatchBusy, BatchCancelled, BatchError, LinkError
from exahpc.wire import messages as m
from exahpc.wire.folder import Folder
from exahpc.wire.link import ask
from exahpc.wire.shelf import Shelf
from exahpc.wire.submissions import LineError, Phase, State
from exahpc.wire.tray import Tray

log = logging.getLogger(__name__)

_POLL = 1.0
_PASSING = NO_ROOM | {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENFILE, errno.EMFILE, errno.ENOMEM}


def _passes(error: BatchError | LinkError | OSError) -> bool:
    """Whether it may be gone when the worker is tried again."""
    if isinstance(error, BatchBusy | NoRoomError | LinkError):
        return True
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and cause.errno in _PASSING


class _Stopped(Exception):
    """It is not to go on, before the broker knows of it."""


class Worker:
    """Runs one batch of a deployment. `run` returns an exit code of `queue`."""

    def __init__(self, folder: Folder, deployment: Deployment, batch: str) -> None:
        """Raises BatchError when nobody submitted it."""
        self._folder, self._deployment, self._tray = folder, deployment, Tray(folder.path)
        submission = self._tray.submission(batch)
        if submission is None:
            raise BatchError(f"nobody submitted {batch}")
        self._submission = submission
        self._output = Path(submission.output)
        self._state = self._tray.state(batch)
        self._saved = self._looked = 0.0
        self._end: Phase | None = None  # that is wished

    def run(self) -> int:
        if self._state.ended:
            self._clear()
            return DONE
        try:
            self._end_it()
        except (BatchError, LinkError, OSError) as error:
            if not _passes(error):
                raise
            return self._later(error)
        self._clear()
        return DONE

    def _end_it(self) -> None:
        """However it ends. Raises what may pass."""
        try:
            try:
                self._run()
            except (_Stopped, BatchCancelled):
                self._stopped()
        except BatchError as error:
            if _passes(error):
                raise
            self._fail(error)

    def _run(self) -> None:
        self._look()
        submission = self._submission
        options = msgspec.json.decode(submission.options, type=InputOptions)
        if submission.order is not None and self._state.phase == "validating":
            refuse_packed(map(Path, submission.sources), options)
        try:
            prepared = running.prepare(
                Inputs(tuple(map(Path, submission.sources)), options),
                self._output,
                served_name=self._deployment.served_name,
                skip_invalid=submission.skip_invalid,
                progress=lambda done, total: self._look(),
            )
        except BatchError as error:
            parts, several = Parts.of(self._output), len(submission.sources) > 1
            raise refused(error, parts, named=several) from error.__cause__
        try:
            if prepared.summary is None:
                if submission.order is not None:
                    check_endpoint(prepared.parts, submission.order.endpoint)
                note_deployment(prepared.parts, self._folder.path)
                self._drive(prepared)
            else:
                counts = prepared.summary
                self._save(self._state, batch=prepared.plan.batch, total=counts.total)
            if submission.order is not None:
                self._to("finalizing")
                self._publish(self._output, prepared)
            self._to("completed", note="")
        finally:
            prepared.release()

    def _drive(self, prepared: Prepared) -> None:
        plan = prepared.plan
        phase: Phase = "finalizing" if self._state.phase == "finalizing" else "in_progress"  # an earlier life's
        self._to(phase, batch=plan.batch, total=plan.rows, note="")
        if prepared.resumed and running.complete(prepared):
            summary = running.finish(prepared)
        else:
            summary = running.drive(
                prepared, self._ask, self._report, over=lambda: self._to("finalizing", note=""), poll_seconds=_POLL
            )
        self._to("finalizing", total=summary.total, ok=summary.ok, failed=summary.failed)

    def _ask(self, question: Question) -> m.BatchState | m.Refused:
        try:
            self._look()
        except _Stopped:
            question = m.BatchCancel(self._state.batch)
        answer = self._send(question)
        if isinstance(answer, m.Refused) and isinstance(question, m.BatchCancel):
            raise _Stopped  # the broker does not know it: nobody runs it
        return answer

    def _send(self, question: Question) -> m.BatchState | m.Refused:
        record = self._folder.head()
        if record is None:
            raise LinkError("the deployment has no head")
        answer = ask(self._folder.fleet_key(), record.address, question, m.BrokerToClient)
        if not isinstance(answer, m.BatchState | m.Refused):
            raise LinkError(f"the head answered {type(answer).__name__} to {type(question).__name__}")
        return answer

    def _report(self, status: m.BatchStatus | None) -> None:
        if status is None:
            return
        now = time.monotonic()
        if now - self._saved >= _POLL:
            self._saved = now
            note = status.note if status.state in ("opening", "running") else ""
            self._save(self._state, total=status.total, ok=status.ok, failed=status.failed, note=note)

    # --- when it is to end ---

    def _look(self) -> None:
        """Raises _Stopped when it was cancelled, or its time is over. Looks once a second, until all rows are
        done."""
        if self._state.phase == "finalizing":
            return
        if self._end is None and time.monotonic() - self._looked >= _POLL:
            self._looked = time.monotonic()
            expires = self._submission.expires
            if self._tray.cancelled_at(self._submission.id) is not None:
                self._end = "cancelled"
            elif expires is not None and time.time() >= expires:
                self._end = "expired"
        if self._end is not None:
            raise _Stopped

    def _stopped(self) -> None:
        """What is done is kept: in the `.parts` folder, and, over HTTP, as files."""
        if self._state.batch:
            answer = self._send(m.BatchCancel(self._state.batch))  # an earlier worker may have opened it there
            if isinstance(answer, m.BatchState):
                self._save(self._state, ok=answer.status.ok, failed=answer.status.failed)
        self._publish_parts()
        self._to(self._end or "cancelled", note="")

    def _fail(self, error: BatchError) -> None:
        log.warning("%s failed: %s", self._submission.id, error)
        lines = error.lines if isinstance(error, InputRefused) else (LineError(str(error), code="batch_failed"),)
        if self._state.phase != "validating":
            try:
                self._publish_parts()
            except BatchError as again:
                if _passes(again):  # without its files what it has done would be gone
                    raise
                log.warning("what %s has done cannot be read: %s", self._submission.id, again)
        self._to("failed", errors=lines, note=str(error).partition("\n")[0])

    def _later(self, error: BatchError | LinkError | OSError) -> int:
        if isinstance(error, OSError):
            error = refusal(error, Path(error.filename or self._output), BY_ITSELF)
        elif isinstance(error, NoRoomError):
            error = error.but(BY_ITSELF)
        log.warning("%s waits: %s", self._submission.id, error)
        with contextlib.suppress(OSError):  # it is the disk that is full
            self._save(self._state, note=str(error))
        return AGAIN

    # --- what it made ---

    def _publish_parts(self) -> None:
        parts = Parts.of(self._output)
        if self._submission.order is not None and parts.manifest.exists():
            self._publish(parts.path)

    def _publish(self, source: Path, prepared: Prepared | None = None) -> None:
        shelf = Shelf(self._folder.path, self._submission.owner)
        beat = prepared.beat if prepared is not None else lambda: None
        made = publish(source, self._submission.id, shelf, int(time.time()), beat)
        self._save(
            self._state,
            ok=made.ok, failed=made.failed, output_file=made.output_file, error_file=made.error_file,
            prompt_tokens=made.prompt_tokens, completion_tokens=made.completion_tokens,
        )  # fmt: skip

    def _clear(self) -> None:
        """Its answers are files now; of the command line's, the output lies where it was asked for."""
        self._tray.clear(self._submission.id)

    def _to(self, phase: Phase, **changed: object) -> None:
        self._save(self._state.to(phase, int(time.time())), **changed)

    def _save(self, state: State, **changed: object) -> None:
        state = msgspec.structs.replace(state, **changed)
        if state != self._state:
            self._tray.save(self._submission.id, state)
            self._state = state
