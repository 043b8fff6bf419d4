"""Questions about batches to a deployment's broker, and what to tell a user who waits for its nodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from exahpc.batch import noted
from exahpc.batch.plan import Parts
from exahpc.batch.run import Question
from exahpc.errors import BatchError, DeploymentError, LinkError
from exahpc.launch import ready, words
from exahpc.wire import messages as m
from exahpc.wire.folder import Folder
from exahpc.wire.link import ask

_LOOK_SECONDS = 5.0


def ask_broker(folder: Folder, question: m.Message) -> m.StatusReply | m.BatchState | m.Refused:
    """Raises LinkError when nobody answers, or the answer is another's."""
    record = folder.head()
    if record is None:
        raise LinkError(f"{folder.path.name} has no head: is it up? (`exahpc status {folder.path.name}`)")
    answer = ask(folder.fleet_key(), record.address, question, m.BrokerToClient)
    if not isinstance(answer, m.StatusReply | m.BatchState | m.Refused):
        raise LinkError(
            f"the head answered {type(answer).__name__} to {type(question).__name__}: versions differ?"
        )
    return answer


def about_batch(folder: Folder, question: Question) -> m.BatchState | m.Refused:
    """Raises LinkError."""
    answer = ask_broker(folder, question)
    if isinstance(answer, m.StatusReply):
        raise LinkError(f"the head answered StatusReply to {type(question).__name__}: versions differ?")
    return answer


def state_of(answer: m.BatchState | m.Refused) -> m.BatchStatus:
    """Raises BatchError with the broker's reason."""
    if isinstance(answer, m.Refused):
        raise BatchError(answer.reason)
    return answer.status


def note_deployment(parts: Parts, folder: Folder) -> None:
    """Remember who runs this batch, for `batch status OUTPUT` and `batch cancel OUTPUT`."""
    noted.note_deployment(parts, folder.path)


def noted_deployment(parts: Parts) -> Folder | None:
    """The deployment that ran it last, if its folder is there still."""
    path = noted.noted_deployment(parts)
    return None if path is None else Folder(path)


class Watching:
    """Asks the broker about a batch; while no row moves it also looks what its deployment waits for.

    text: what is going on, "" while rows run. told: lines that a user should read once.
    """

    def __init__(self, folder: Folder, clock: Callable[[], float], told: Callable[[str], None]) -> None:
        self.folder, self._clock, self._told = folder, clock, told
        self.text = ""
        self._look_at = clock()
        self._news: set[str] = set()
        self._held = ""
        self._failed: dict[tuple[str, int, int], set[int]] = {}

    def ask(self, question: Question) -> m.BatchState | m.Refused:
        """Raises LinkError when nobody answers; DeploymentError when no replica can ever start."""
        try:
            answer = about_batch(self.folder, question)
        except LinkError:
            self.text = "waiting for the head"
            self._tell(words.silent(self.folder, None, self._news))
            raise
        if isinstance(answer, m.BatchState) and self._holds(answer.status):
            self.text = answer.status.note
        elif isinstance(answer, m.Refused) or answer.status.leased or answer.status.state != "running":
            self.text = ""
        elif self._clock() >= self._look_at:
            self._look_at = self._clock() + _LOOK_SECONDS
            self._look()
        return answer

    def _holds(self, status: m.BatchStatus) -> bool:
        """Whether the batch waits for what its note names, which is told once: its figures are no news."""
        note = status.note if status.state in ("opening", "running") else ""
        what = re.sub("[0-9]+", "0", note)
        if what != self._held:
            self._held = what
            self._tell([note] if note else [])
        return bool(note)

    def _look(self) -> None:
        reply = ready.look(self.folder)
        if reply is None:
            return
        shown = ready.progress(reply, self._news)
        self._tell(shown.news)
        self._tell(words.silent(self.folder, reply, self._news))
        if not reply.ready:
            self.text = f"waiting for replicas: {shown.text}"
            if reason := ready.hopeless(reply, self._failed):
                raise DeploymentError(reason)

    def _tell(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._told(line)
