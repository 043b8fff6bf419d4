"""What `/v1/batches` does to the tray. Called by threads: each may wait for a shared file system.

An owner sees its own batches only; those of others, and of the command line, do not exist for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from exahpc.deployment.spec import Deployment
from exahpc.entry.upload import PURPOSE
from exahpc.errors import RequestError
from exahpc.openai import batches as objects
from exahpc.openai.body import printable
from exahpc.openai.fields import refuse
from exahpc.wire.shelf import Shelf
from exahpc.wire.submissions import Order, Submission
from exahpc.wire.tray import Tray

_LISTED, _MOST_LISTED = 20, 100
_COMMAND_LINE = ""
_AS_REQUESTS = msgspec.Raw(b'{"format":"requests"}')


class Orders:
    """folder: the deployment's."""

    def __init__(self, folder: Path, deployment: Deployment) -> None:
        self._folder, self._tray = folder, Tray(folder)
        self._most, self._model = deployment.limits.batches, deployment.served_name
        self._owners: dict[str, str] = {}  # neither this ...
        self._ended: set[str] = set()  # ... nor this ever changes

    def create(self, owner: str, order: Order) -> bytes:
        """Raises RequestError: no such file, or too many batches."""
        shelf = Shelf(self._folder, owner)
        record = shelf.record(order.input_file)
        if record is None:
            message = f"input_file_id: there is no file {printable(order.input_file)}: upload it first"
            raise RequestError(message, status=404, param="input_file_id", code="not_found")
        if record.purpose != PURPOSE:
            refuse("input_file_id", f'{record.id} has purpose "{record.purpose}": give a file with "{PURPOSE}"')
        going = sum(not self._is_over(batch) for batch in self._of(owner))
        if going >= self._most:
            message = f"{going} of your batches have not ended (limits.batches): wait for one, or cancel one"
            raise RequestError(message, status=429, type="rate_limit_error", code="batches_full", retry_after=60)
        batch = self._tray.new_id()
        place = self._tray.folder(batch)
        sources, output = (str(place / "input.jsonl"),), str(place / "results.h5")
        submission = Submission(batch, int(time.time()), owner, sources, output, _AS_REQUESTS, order=order)
        self._tray.submit(submission, shelf.content(record.id))
        return self._shown(submission)

    def shown(self, owner: str, batch: str) -> bytes:
        return self._shown(self._mine(owner, batch))

    def cancel(self, owner: str, batch: str) -> bytes:
        submission = self._mine(owner, batch)
        state = self._tray.state(batch)
        if state.ended:
            message = f"batch {batch} is {state.phase}: there is nothing to cancel"
            raise RequestError(message, param="id", code="batch_ended")
        self._tray.cancel(batch)
        return self._shown(submission)

    def listed(self, owner: str, query: Mapping[str, str]) -> bytes:
        """One page, newest first."""
        limit = objects.limit_of(query, _LISTED, _MOST_LISTED)
        mine = (self._mine(owner, batch) for batch in self._of(owner))
        taken, more = objects.page(mine, query.get("after"), limit)
        return objects.encoded(objects.listed([self._object(one) for one in taken], more))

    def _of(self, owner: str) -> Iterator[str]:
        """Newest first."""
        for batch in self._tray.ids():
            if self._owner(batch) == owner:
                yield batch

    def _owner(self, batch: str) -> str:
        if batch not in self._owners:
            submission = self._tray.submission(batch)
            if submission is None:
                return _COMMAND_LINE
            self._owners[batch] = submission.owner
        return self._owners[batch]

    def _mine(self, owner: str, batch: str) -> Submission:
        submission = self._tray.submission(batch)
        if submission is None or submission.owner != owner or submission.order is None:
            raise objects.no_such("batch", batch)
        return submission

    def _is_over(self, batch: str) -> bool:
        if batch not in self._ended and self._tray.state(batch).ended:
            self._ended.add(batch)
        return batch in self._ended

    def _object(self, submission: Submission) -> objects.Values:
        batch = submission.id
        return objects.batch_object(
            submission, self._tray.state(batch), self._tray.cancelled_at(batch), self._model
        )

    def _shown(self, submission: Submission) -> bytes:
        return objects.encoded(self._object(submission))
