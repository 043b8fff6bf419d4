"""Slurm at arm's length, for sites whose nodes may not run its commands.

The broker writes a *wish* into the deployment's folder; `exahpc watch` on a login node does it and writes the
answer. Files in FOLDER/slurm/wishes/ (0700), each 0600 and written whole:

    NAME.wish     what is wanted; whoever renames it has taken it, so it is done once
    NAME.taken    being done
    NAME.answer   how it went; removed by the one who wished

A wish that nobody takes is withdrawn, and fails like a Slurm that cannot be asked. One that was taken and not
answered may have happened: the broker finds out by its agents' hellos, as after its own death.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar, assert_never

import msgspec

from exahpc.errors import ExahpcError, SlurmError
from exahpc.slurm.api import JobRecord, RequeueDisabled, SlurmClient, Submission, Unanswered
from exahpc.wire.folder import write_atomic

T = TypeVar("T")
PATIENCE = 20.0
"""Seconds for a watcher to take a wish."""
DOING = 180.0
"""Seconds for one that was taken: a requeue off a dying node takes up to a minute."""
_THREADS = 4
log = logging.getLogger(__name__)


class Wish(msgspec.Struct, frozen=True, tag=True):
    """Base: one call of a SlurmClient."""


class Submit(Wish, frozen=True):
    submission: Submission


class Jobs(Wish, frozen=True):
    ids: list[str]


class Requeue(Wish, frozen=True):
    job: str
    exclude: str | None


class Hurry(Wish, frozen=True):
    job: str


class Cancel(Wish, frozen=True):
    job: str
    signal: str | None


class Named(Wish, frozen=True):
    name: str
    folder: str


class Topology(Wish, frozen=True):
    pass


AnyWish = Submit | Jobs | Requeue | Hurry | Cancel | Named | Topology


class Answer(msgspec.Struct, frozen=True):
    """value: what the call returned; error: why it was refused, or ""; disabled, unknown: it was a
    RequeueDisabled, an Unanswered."""

    value: Any = None
    error: str = ""
    disabled: bool = False
    unknown: bool = False


def directory(folder: Path) -> Path:
    """Where wishes lie; made where it is not there."""
    path = folder / "slurm" / "wishes"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def withdraw(folder: Path) -> None:
    """Take back what nobody has taken, of whoever wished it: he is not there any more."""
    for path in directory(folder).glob("*.wish"):
        path.unlink(missing_ok=True)


class Remote:
    """A SlurmClient whose work is done by a watcher. May be used from several threads."""

    name = "exahpc watch"

    def __init__(
        self, folder: Path, *, patience: float = PATIENCE, doing: float = DOING, poll: float = 0.1
    ) -> None:
        """Wishes that an earlier broker left are withdrawn: this one has decided nothing yet."""
        self._folder = folder
        self._patience, self._doing, self._poll = patience, doing, poll
        withdraw(folder)

    def submit(self, submission: Submission) -> str:
        return self._ask(Submit(submission), str)

    def jobs(self, ids: Sequence[str]) -> list[JobRecord]:
        return self._ask(Jobs(list(ids)), list[JobRecord]) if ids else []

    def requeue(self, job: str, *, exclude: str | None = None) -> None:
        self._ask(Requeue(job, exclude), type(None))

    def hurry(self, job: str) -> bool:
        return self._ask(Hurry(job), bool)

    def cancel(self, job: str, *, signal: str | None = None) -> None:
        self._ask(Cancel(job, signal), type(None))

    def named(self, name: str, folder: str) -> set[str]:
        return self._ask(Named(name, folder), set[str])

    def topology(self) -> dict[str, str]:
        return self._ask(Topology(), dict[str, str])

    def _ask(self, wish: AnyWish, kind: type[T]) -> T:
        stem = directory(self._folder) / f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}"
        made, taken, answered = (stem.with_suffix(end) for end in (".wish", ".taken", ".answer"))
        write_atomic(made, msgspec.json.encode(wish))
        name, verb = self._folder.name, type(wish).__name__.lower()
        try:
            if not self._appears(answered, self._patience):
                if _withdrawn(made):
                    raise SlurmError(
                        f"nobody runs Slurm's commands for {name}: start `exahpc watch {name}` on a login node"
                    )
                if not self._appears(answered, self._doing):
                    raise Unanswered(
                        f"`exahpc watch {name}` took a {verb} and did not answer: it may have happened"
                    )
            answer = msgspec.json.decode(answered.read_bytes(), type=Answer)
        except OSError as error:
            raise Unanswered(f"no answer to a {verb} can be read ({error}): it may have happened") from error
        finally:
            for path in (answered, taken):
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
        if answer.error:
            kind_of_error = RequeueDisabled if answer.disabled else Unanswered if answer.unknown else SlurmError
            raise kind_of_error(answer.error)
        return msgspec.convert(answer.value, kind)

    def _appears(self, path: Path, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not path.exists():
            if time.monotonic() > until:
                return False
            time.sleep(self._poll)
        return True


def _withdrawn(wish: Path) -> bool:
    """False when somebody has taken it."""
    try:
        wish.unlink()
    except FileNotFoundError:
        return False
    return True


class Watcher:
    """Does what is wished, oldest first, some at once. Several watchers of one deployment do no harm."""

    def __init__(self, folder: Path, client: SlurmClient, told: Callable[[str], None] = lambda line: None) -> None:
        self._directory, self._client, self._told = directory(folder), client, told
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="watch")
        self._places = threading.Semaphore(_THREADS)

    def turn(self) -> int:
        """Take all that is wished now; returns how many. Waits while too much is being done already."""
        count = 0
        for path in sorted(self._directory.glob("*.wish")):
            self._places.acquire()
            taken = path.with_suffix(".taken")
            try:
                path.rename(taken)
            except FileNotFoundError:  # withdrawn, or another watcher was faster
                self._places.release()
                continue
            count += 1
            self._threads.submit(self._do, taken)
        return count

    def close(self) -> None:
        """Wait for what is being done."""
        self._threads.shutdown(wait=True)

    def _do(self, taken: Path) -> None:
        try:
            answer = self._answer(taken)
            with contextlib.suppress(OSError):  # the deployment's folder may be gone
                write_atomic(taken.with_suffix(".answer"), msgspec.json.encode(answer))
                taken.unlink(missing_ok=True)
        finally:
            self._places.release()

    def _answer(self, taken: Path) -> Answer:
        try:
            found = taken.stat()
            if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
                raise SlurmError(f"{taken} may be somebody else's: it is not done")
            wish = msgspec.json.decode(taken.read_bytes(), type=AnyWish)
            return Answer(self._perform(wish))
        except (ExahpcError, OSError, msgspec.MsgspecError) as error:
            log.warning("%s", error)
            disabled, unknown = (isinstance(error, kind) for kind in (RequeueDisabled, Unanswered))
            return Answer(error=str(error), disabled=disabled, unknown=unknown)

    def _perform(self, wish: AnyWish) -> Any:
        if not isinstance(wish, Jobs | Named | Topology):
            self._told(_words(wish))
        match wish:
            case Submit(submission):
                return self._client.submit(submission)
            case Jobs(ids):
                return self._client.jobs(ids)
            case Requeue(job, exclude):
                return self._client.requeue(job, exclude=exclude)
            case Hurry(job):
                return self._client.hurry(job)
            case Cancel(job, signal):
                return self._client.cancel(job, signal=signal)
            case Named(name, folder):
                return self._client.named(name, folder)
            case Topology():
                return self._client.topology()
            case _:
                assert_never(wish)


def _words(wish: AnyWish) -> str:
    """For people."""
    if isinstance(wish, Submit):
        return " ".join(("submit", wish.submission.name, wish.submission.array or "")).strip()
    exclude = getattr(wish, "exclude", None)
    return f"{type(wish).__name__.lower()} {getattr(wish, 'job', '')}" + (f", not on {exclude}" if exclude else "")
