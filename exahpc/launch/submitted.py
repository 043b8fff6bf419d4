"""Submitted batches from the command line: handing one to a deployment's clerk, finding one again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from exahpc.batch.inputs.options import Inputs, refuse_output
from exahpc.batch.plan import Parts
from exahpc.errors import BatchBusy, BatchError, DeploymentError
from exahpc.launch import place
from exahpc.wire.folder import Folder
from exahpc.wire.messages import BatchStatus
from exahpc.wire.submissions import State, Submission, is_batch_id
from exahpc.wire.tray import Tray


class Found(NamedTuple):
    """A submission and how far it is, as of now. cancelled_at: since when it is wished that it ends."""

    folder: Folder
    submission: Submission
    state: State
    cancelled_at: int | None

    @property
    def word(self) -> str:
        """Its state in one word."""
        return "cancelling" if self.cancelled_at is not None and not self.state.ended else self.state.phase

    def again(self) -> Found:
        """As of now."""
        tray = Tray(self.folder.path)
        return self._replace(
            state=tray.state(self.submission.id), cancelled_at=tray.cancelled_at(self.submission.id)
        )

    def cancel(self) -> Found:
        """Wish that it ends. Raises BatchError when it has."""
        if self.state.ended:
            raise BatchError(f"{self.submission.id} is {self.state.phase}: there is nothing to cancel")
        Tray(self.folder.path).cancel(self.submission.id)
        return self.again()

    def status(self) -> BatchStatus:
        """As of any other batch."""
        state, parts = self.state, Parts.of(Path(self.submission.output))
        return BatchStatus(
            self.submission.id, str(parts.path), state.total, state.ok, state.failed, 0, self.word,
            state.note, prompt_tokens=state.prompt_tokens, completion_tokens=state.completion_tokens,
        )  # fmt: skip


def submit(folder: Folder, inputs: Inputs, output: Path, *, skip_invalid: bool) -> Submission:
    """Hand a batch to the clerk, which validates the rows.

    Raises BatchError when the output cannot be, BatchBusy while a batch that was submitted before makes it.
    """
    output = output.absolute()
    refuse_output(output, inputs.paths)
    if not output.parent.is_dir():
        raise BatchError(f"folder {output.parent} of the output does not exist: make it, or choose another output")
    tray = Tray(folder.path)
    for found in of_deployment(folder):
        if found.submission.output == str(output) and not found.state.ended:
            raise BatchBusy(f"{found.submission.id} makes {output} already: watch it, or cancel it first")
    options = msgspec.Raw(msgspec.json.encode(inputs.options))
    submission = Submission(
        tray.new_id(), int(time.time()), "", tuple(map(str, inputs.paths)), str(output), options, skip_invalid
    )
    tray.submit(submission)
    return submission


def of_deployment(folder: Folder) -> Iterator[Found]:
    """All that were submitted to it, over HTTP too, newest first."""
    tray = Tray(folder.path)
    for batch in tray.ids():
        submission = tray.submission(batch)
        if submission is not None:
            yield Found(folder, submission, tray.state(batch), tray.cancelled_at(batch))


def look_up(what: Path, name: str | None) -> Found | None:
    """The submission with this id, or the newest one that makes this output; None when there is none.

    name: of its deployment, None for any of this user's.
    """
    output = str(what.absolute())
    folders = [place.folder_of(name)] if name else [place.folder_of(known) for known in place.names()]
    matches: list[Found] = []
    for folder in folders:
        if is_batch_id(what.name):
            tray = Tray(folder.path)
            submission = tray.submission(what.name)
            if submission is not None:
                return Found(folder, submission, tray.state(what.name), tray.cancelled_at(what.name))
        matches += (found for found in of_deployment(folder) if found.submission.output == output)
    return max(matches, key=lambda found: found.submission.id, default=None)


def find(what: Path, name: str | None) -> Found:
    """As `look_up`. Raises DeploymentError when there is none."""
    found = look_up(what, name)
    if found is None:
        where = f"to {name}" if name else "to any deployment here"
        raise DeploymentError(f"{what} was not submitted {where}: see `exahpc batch list`")
    return found
