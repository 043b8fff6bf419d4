"""`/v1/files` and `/v1/batches`: uploads and orders lie in the deployment's folder, for all entries alike.

The clerk runs the batches; an entry only writes and reads files, and leaves that to threads. A key sees what its
owner has (see `keys`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from exahpc.deployment.spec import Deployment
from exahpc.entry import filed
from exahpc.entry.connection import Connection
from exahpc.entry.download import Download
from exahpc.entry.form import LONGEST_FIELD, MOST_FIELDS, file_too_large
from exahpc.entry.http1 import Request
from exahpc.entry.keys import Keys
from exahpc.entry.ordered import Orders
from exahpc.entry.upload import Upload, told
from exahpc.errors import RequestError
from exahpc.openai.batches import encoded, file_object, order_of
from exahpc.wire.folder import Folder
from exahpc.wire.shelf import Shelf

_ROOMS = (b"/v1/files", b"/v1/batches")
_THREADS = 8
_FORM_BYTES = MOST_FIELDS * 2 * LONGEST_FIELD  # of a form beside its file

Work = Callable[[], bytes]
_ALLOWED: dict[tuple[str, str], tuple[bytes, ...]] = {
    ("files", ""): (b"GET", b"POST"),
    ("files", "ID"): (b"GET", b"DELETE"),
    ("files", "ID/content"): (b"GET",),
    ("batches", ""): (b"GET", b"POST"),
    ("batches", "ID"): (b"GET",),
    ("batches", "ID/cancel"): (b"POST",),
}


class _Asked:
    """Where a request goes: room ("files" or "batches"), the name of one thing in it, and what of that."""

    def __init__(self, path: bytes) -> None:
        self.room, _, rest = _text(path).removeprefix("/v1/").partition("/")
        self.name, _, self.what = rest.partition("/")

    @property
    def allowed(self) -> tuple[bytes, ...]:
        """Methods; none where nothing is."""
        form = "ID/" + self.what if self.what else "ID" if self.name else ""
        return _ALLOWED.get((self.room, form), ())


class _Visit:
    """A client that waits for an answer; gone: it has left."""

    def __init__(self, connection: Connection) -> None:
        self.connection, self.gone = connection, False
        self.download: Download | None = None

    def leave(self) -> None:
        self.gone = True
        if self.download is not None:
            self.download.leave()

    def refuse(self, error: Exception) -> None:
        if not self.gone:
            self.connection.refuse(told(error))


class Library:
    """The endpoints. admit, serve: as in `app.Gateway`."""

    def __init__(self, deployment: Deployment, folder: Folder, keys: Keys) -> None:
        self._folder, self._keys, self._limits = folder.path, keys, deployment.limits
        self._orders = Orders(folder.path, deployment)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="library")
        self._tasks: set[asyncio.Task[None]] = set()

    @staticmethod
    def knows(path: bytes) -> bool:
        return path.startswith(_ROOMS)

    def admit(self, request: Request) -> None:
        """Judge a request by its head; a file begins to be taken here. Raises RequestError."""
        asked = _Asked(request.path)
        allowed = asked.allowed
        if not allowed:
            raise RequestError(f"there is no {_text(request.path)} here", status=404, code="not_found")
        if request.method not in allowed:
            takes = " or ".join(map(_text, allowed))
            message = f"{_text(request.path)} takes {takes}, not {_text(request.method)}"
            raise RequestError(message, status=405, code="method_not_allowed")
        if request.method == b"POST" and asked.room == "files":
            most, shelf = self._limits.upload_bytes, self._shelf(request)
            if request.length > most + _FORM_BYTES:
                raise file_too_large(request.length, most)
            room = partial(filed.check_room, shelf, self._limits)
            request.sink = Upload(request, shelf, most, room, self._threads)

    def serve(self, request: Request, connection: Connection) -> Callable[[], None]:
        """Answer later. Returns what to call when the client leaves before that. Raises RequestError."""
        asked, visit = _Asked(request.path), _Visit(connection)
        if isinstance(request.sink, Upload):
            self._task(self._upload(request.sink, visit))
        elif asked.what == "content":
            self._task(self._download(self._shelf(request), asked.name, visit))
        elif asked.room == "files":
            self._task(self._answer(self._about_files(request, asked.name), visit))
        else:
            self._task(self._answer(self._about_batches(request, asked), visit))
        return visit.leave

    def _about_files(self, request: Request, name: str) -> Work:
        shelf = self._shelf(request)
        if request.method == b"DELETE":
            return lambda: filed.delete(shelf, name)
        if name:
            return lambda: filed.shown(shelf, name)
        query = request.query
        return lambda: filed.listed(shelf, query)

    def _about_batches(self, request: Request, asked: _Asked) -> Work:
        owner = self._owner(request)
        if asked.what:
            return lambda: self._orders.cancel(owner, asked.name)
        if asked.name:
            return lambda: self._orders.shown(owner, asked.name)
        if request.method == b"POST":
            order = order_of(request.body)
            return lambda: self._orders.create(owner, order)
        query = request.query
        return lambda: self._orders.listed(owner, query)

    def _owner(self, request: Request) -> str:
        return self._keys.owner(request.authorization or b"")

    def _shelf(self, request: Request) -> Shelf:
        return Shelf(self._folder, self._owner(request))

    # --- answers, when threads have done their part ---

    async def _answer(self, work: Work, visit: _Visit) -> None:
        try:
            body = await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except Exception as error:
            visit.refuse(error)
        else:
            if not visit.gone:
                visit.connection.respond(200, body)

    async def _upload(self, upload: Upload, visit: _Visit) -> None:
        await upload.settled()
        if visit.gone:
            upload.abort()
        else:
            await self._answer(lambda: encoded(file_object(upload.finish())), visit)

    async def _download(self, shelf: Shelf, name: str, visit: _Visit) -> None:
        try:
            record, fd = await asyncio.get_running_loop().run_in_executor(self._threads, filed.opened, shelf, name)
        except Exception as error:
            visit.refuse(error)
            return
        visit.download = Download(visit.connection, fd, record.size, self._threads)
        if visit.gone:
            visit.download.leave()
        await visit.download.run()

    def _task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the loop itself only remembers tasks weakly
        task.add_done_callback(self._tasks.discard)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
