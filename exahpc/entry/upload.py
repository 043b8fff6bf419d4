"""The body of `POST /v1/files` on its way to disk: never held in memory, written by threads.

Called in the loop, apart from `_take` and `finish`. While the disk is slower than the client, the client waits.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Literal, Protocol

from exahpc.entry.form import Form
from exahpc.entry.http1 import Request
from exahpc.errors import RequestError
from exahpc.openai.body import printable
from exahpc.wire.shelf import Shelf
from exahpc.wire.submissions import FileRecord

log = logging.getLogger(__name__)

HELD_BYTES = 2**20
"""What waits for the disk before the client has to wait."""
_A_MINUTE_FOR = 2**20
"""An upload may take a minute for each such many bytes; slower clients are cut off like all who dawdle."""
PURPOSE: Literal["batch"] = "batch"
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Client(Protocol):
    """What an upload needs of its connection."""

    def hold(self, holding: bool) -> None:
        """Read no more from the client, or go on."""

    def more_time(self) -> None:
        """The client is at work: it may take another minute."""

    def turned_down(self, request: Request, error: RequestError) -> None:
        """A request whose body may still be coming in is refused; the rest of it is of no interest."""


class Upload:
    """One file that comes in as the body of `request`.

    most: bytes it may have; room: called by a thread with the bytes that will come, before any is written and at
    the end; raises RequestError when the shelf is full.
    """

    def __init__(
        self, request: Request, shelf: Shelf, most: int, room: Callable[[int], None], threads: Executor
    ) -> None:
        """Raises RequestError for a body that is no form."""
        self.id = shelf.new_id()
        self._request, self._shelf, self._room, self._threads = request, shelf, room, threads
        self._form = Form(request.content_type, self._write, most)
        self._part: Path = shelf.part(self.id)
        self._fd = -1
        self._removing = threading.Lock()
        self._chunks: list[bytes] = []
        self._held = self._credit = 0
        self._taking: asyncio.Future[None] | None = None
        self._settled: asyncio.Future[None] | None = None
        self._over = self._holds = False
        self._error: RequestError | None = None

    # --- the loop ---

    def feed(self, data: bytes, client: Client) -> None:
        self._chunks.append(data)
        self._held += len(data)
        self._credit += len(data)
        if self._credit >= _A_MINUTE_FOR:
            self._credit = 0
            client.more_time()
        if self._held > HELD_BYTES:
            self._holds = True
            client.hold(True)
        if self._taking is None:
            self._go_on(client)

    def _go_on(self, client: Client) -> None:
        chunks, self._chunks = self._chunks, []
        loop = asyncio.get_running_loop()
        self._taking = loop.run_in_executor(self._threads, self._take, chunks)
        self._taking.add_done_callback(lambda done: self._taken(done, sum(map(len, chunks)), client))

    def _taken(self, done: asyncio.Future[None], size: int, client: Client) -> None:
        self._taking = None
        self._held -= size
        error = done.exception()
        if self._over:
            self._drop()
        elif error is not None:
            self._error = told(error)
            self.abort()
            client.turned_down(self._request, self._error)
            client.hold(False)
        else:
            if self._holds and self._held <= HELD_BYTES:
                self._holds = False
                client.more_time()  # it was the disk that was slow
                client.hold(False)
            if self._chunks:
                self._go_on(client)
        if self._settled is not None and self._taking is None and not self._settled.done():
            self._settled.set_result(None)

    def abort(self) -> None:
        """The client left, or was refused. No error when it is over already."""
        self._over = True
        self._chunks.clear()
        if self._taking is None:
            self._drop()

    def _drop(self) -> None:
        self._threads.submit(self._remove)

    async def settled(self) -> None:
        """All bytes were given: wait until they are written, or refused. Call once, before `finish`."""
        if self._taking is not None:
            self._settled = asyncio.get_running_loop().create_future()
            await self._settled

    # --- threads, one at a time ---

    def _take(self, chunks: list[bytes]) -> None:
        for chunk in chunks:
            self._form.feed(chunk)

    def _write(self, data: bytes) -> None:
        if self._fd < 0:
            self._room(self._request.length)
            self._shelf.create()
            self._fd = os.open(self._part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def finish(self) -> FileRecord:
        """After `settled`: the file exists from now on. Raises RequestError; then nothing is left of it."""
        self._over = True
        try:
            if self._error is not None:
                raise self._error
            self._form.close()
            purpose = self._form.fields.get("purpose")
            if purpose != PURPOSE:
                wrong = "missing" if purpose is None else f"{printable(purpose)} is not served"
                raise RequestError(f'purpose: {wrong}: give "{PURPOSE}"', param="purpose")
            for name in self._form.fields:
                if name.startswith("expires_after"):
                    message = "expires_after: files stay until they are deleted: leave it out, and delete them"
                    raise RequestError(message, param="expires_after", code="unsupported_parameter")
            if not self._form.size:
                raise RequestError("file: it is empty", param="file", code="empty_file")
            self._room(0)
            os.fsync(self._fd)
            name = self._form.filename or "file"
            record = FileRecord(self.id, self._form.size, int(time.time()), name, PURPOSE)
            self._shelf.publish(record)
            return record
        finally:
            self._remove()  # published, there is no part any more

    def _remove(self) -> None:
        """Once, though a refusal and `finish` may both ask for it, each from a thread."""
        with self._removing:
            fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
            self._part.unlink(missing_ok=True)


def told(error: BaseException) -> RequestError:
    """What a client hears of a failure of ours."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, OSError) and error.errno in FULL:
        message = "there is no room on the deployment's file system: delete files, or ask for room"
        return RequestError(message, status=507, type="server_error", code="disk_full", final=True)
    log.error("files or batches: %s", error, exc_info=error)
    return RequestError("internal error", status=500, type="server_error")
