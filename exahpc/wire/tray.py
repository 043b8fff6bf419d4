"""Submitted batches in the deployment's folder. Whoever submits writes a folder; the clerk runs what it finds.

batches/ID/request.json   Submission; the folder appears with it, whole
batches/ID/input.jsonl    the input, if it was uploaded: a further name of that file, so deleting it does no harm
batches/ID/state.json     State, replaced by whoever runs it
batches/ID/cancel         Wish: somebody wants it to end
batches/ID/results.h5*    what it makes on its way, if it was submitted over HTTP
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path

import msgspec

from exahpc.errors import BatchError
from exahpc.wire.folder import write_atomic
from exahpc.wire.submissions import BATCH_PREFIX, State, Submission, is_batch_id, new_id


class Wish(msgspec.Struct, frozen=True):
    """at: seconds since 1970."""

    at: int


class Tray:
    """folder: the deployment's. Every method may wait for a shared file system."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "batches"

    def folder(self, batch: str) -> Path:
        return self.path / batch

    @staticmethod
    def new_id() -> str:
        return new_id(BATCH_PREFIX, int(time.time() * 1000), int.from_bytes(os.urandom(6)))

    def submit(self, submission: Submission, upload: Path | None = None) -> None:
        """Hand it to the clerk. upload: what its input is to be another name of. Raises OSError."""
        self.path.mkdir(mode=0o700, exist_ok=True)
        made = self.path / f".{submission.id}.new"
        made.mkdir(mode=0o700)
        try:
            if upload is not None:
                os.link(upload, made / Path(submission.sources[0]).name)
            write_atomic(made / "request.json", msgspec.json.encode(submission), durable=True)
            os.rename(made, self.folder(submission.id))
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise

    def ids(self) -> list[str]:
        """All that were ever submitted, newest first."""
        try:
            return sorted(filter(is_batch_id, os.listdir(self.path)), reverse=True)
        except FileNotFoundError:
            return []

    def changed(self) -> int:
        """Grows when something was submitted."""
        try:
            return self.path.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def submission(self, batch: str) -> Submission | None:
        """None when there is none of this id. Raises BatchError when it cannot be read."""
        if not is_batch_id(batch):
            return None
        path = self.folder(batch) / "request.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=Submission)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise BatchError(f"{path} cannot be read ({error}): was it written by another version?") from error

    def state(self, batch: str) -> State:
        try:
            return msgspec.json.decode((self.folder(batch) / "state.json").read_bytes(), type=State)
        except FileNotFoundError:
            return State()
        except msgspec.MsgspecError as error:
            raise BatchError(f"{self.folder(batch)}/state.json cannot be read ({error}): remove it") from error

    def save(self, batch: str, state: State) -> None:
        write_atomic(self.folder(batch) / "state.json", msgspec.json.encode(state), durable=state.ended)

    def cancel(self, batch: str) -> int:
        """Wish that it ends. Returns since when that is wished."""
        before = self.cancelled_at(batch)
        if before is not None:
            return before
        wish = Wish(int(time.time()))
        write_atomic(self.folder(batch) / "cancel", msgspec.json.encode(wish))
        return wish.at

    def cancelled_at(self, batch: str) -> int | None:
        try:
            return msgspec.json.decode((self.folder(batch) / "cancel").read_bytes(), type=Wish).at
        except (FileNotFoundError, msgspec.MsgspecError):
            return None

    def clear(self, batch: str) -> None:
        """Free what a batch that has ended needed on its way. Its request and its state stay."""
        for path in self.folder(batch).iterdir():
            if path.name in ("request.json", "state.json", "cancel"):
                continue
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    path.unlink()
