"""`/dashboard`: a page for browsers, and what it draws.

The page is the same for everybody and needs no key; all that it shows is asked for with one, by its scripts. They
poll: a broker is asked by each of its entries once in five seconds at most, however many watch.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from exahpc.deployment.spec import Deployment
from exahpc.entry import http1
from exahpc.entry.connection import Connection
from exahpc.entry.dispatch import Dispatch
from exahpc.entry.http1 import Request
from exahpc.entry.upload import told
from exahpc.errors import RequestError
from exahpc.telemetry.glance import glance, layout
from exahpc.telemetry.glance import story as shown_story
from exahpc.telemetry.series import SPANS, series
from exahpc.telemetry.story import brief
from exahpc.wire.folder import Folder
from exahpc.wire.messages import FiguresQuery, FleetFigures, FleetMap, MapQuery, ReplicaQuery, ReplicaStory

ROOT = b"/dashboard"
DATA = b"/dashboard/data/"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The browser loads nothing from elsewhere, runs nothing that came with data, and is framed by nobody."""

_STATIC = Path(__file__).parent / "static"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_PAGE_HEAD = (
    f"content-security-policy: {POLICY}\r\nx-content-type-options: nosniff\r\nreferrer-policy: no-referrer\r\n"
    "cross-origin-opener-policy: same-origin\r\ncache-control: no-cache\r\n"
)
_DATA_HEAD = http1.JSON + b"cache-control: no-store\r\nx-content-type-options: nosniff\r\n"
_REQUEST = re.compile(r"[A-Za-z0-9._:/+=@-]{8,128}")
_SERIES_SECONDS = 10.0
"""The history's files are written once a minute."""

Leave = Callable[[], None] | None


class _Page:
    """One file of the page, as it is sent."""

    def __init__(self, path: Path) -> None:
        self.body = path.read_bytes()
        self.etag = _etag(self.body)
        self.head = f"content-type: {_TYPES[path.suffix]}\r\n{_PAGE_HEAD}".encode()


class Dashboard:
    """The endpoints. admit, serve: as in `app.Gateway`."""

    def __init__(self, deployment: Deployment, folder: Folder) -> None:
        self._name, self._model, self._folder = deployment.name, deployment.served_name, folder.path
        self._pools = {pool.name: pool.replicas for pool in deployment.pool}
        pages = {b"/dashboard/" + path.name.encode(): _Page(path) for path in _STATIC.iterdir() if path.is_file()}
        self._pages = pages | {
            ROOT: pages[b"/dashboard/index.html"],
            b"/dashboard/": pages[b"/dashboard/index.html"],
        }
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dashboard")  # one: files are read in turn
        self._drawn: tuple[FleetMap, FleetFigures, dict[str, Any], dict[str, Any]] | None = None
        self._series: dict[str, tuple[float, asyncio.Future[bytes]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @staticmethod
    def knows(path: bytes) -> bool:
        return path == ROOT or path.startswith(ROOT + b"/")

    def open(self, path: bytes) -> bool:
        """Whether everybody may have it."""
        return path in self._pages

    def admit(self, request: Request) -> None:
        """Raises RequestError."""
        if request.path not in self._pages and request.path not in _DATA:
            raise RequestError(f"there is no {_text(request.path)} here", status=404, code="not_found")
        if request.method not in (b"GET", b"HEAD"):
            message = f"{_text(request.path)} takes GET, not {_text(request.method)}"
            raise RequestError(message, status=405, code="method_not_allowed")

    def serve(self, request: Request, connection: Connection, dispatch: Dispatch) -> Leave:
        page = self._pages.get(request.path)
        if page is not None:
            _respond(request, connection, page.body, page.head, page.etag)
            return None
        return _DATA[request.path](self, request, connection, dispatch)

    # --- data -------------------------------------------------------------------------------------------------

    def glance(self, request: Request, connection: Connection, dispatch: Dispatch) -> Leave:
        """The fleet now. layout: id of the layout that the page has."""
        known = _query(request, "layout").get("layout", "")
        leaving: list[Leave] = []

        def use(fleet: FleetMap | None) -> None:
            leaving.append(dispatch.figures.ask(FiguresQuery(), partial(both, fleet)))

        def both(fleet: FleetMap | None, figures: FleetFigures | None) -> None:
            if fleet is None or figures is None:
                connection.refuse(_unknown())
                return
            now, where = self._draw(fleet, figures)
            body = now if where["id"] == known else now | {"layout": where}
            _respond(request, connection, msgspec.json.encode(body), _DATA_HEAD)

        leaving.append(dispatch.map.ask(MapQuery(), use))
        return lambda: _all(leaving)

    def _draw(self, fleet: FleetMap, figures: FleetFigures) -> tuple[dict[str, Any], dict[str, Any]]:
        """Once for all who watch this entry."""
        if self._drawn is None or self._drawn[0] is not fleet or self._drawn[1] is not figures:
            self._drawn = fleet, figures, glance(self._name, self._model, fleet, figures), layout(fleet)
        return self._drawn[2:]

    def replica(self, request: Request, connection: Connection, dispatch: Dispatch) -> Leave:
        """The story of one replica."""
        query = _query(request, "pool", "slot")
        pool, slot = query.get("pool", ""), query.get("slot", "")
        number = int(slot) if slot.isascii() and slot.isdecimal() and len(slot) < 8 else -1
        if not 0 <= number < self._pools.get(pool, 0):
            raise RequestError("there is no such replica: give its pool and slot", status=404, code="not_found")

        def use(found: ReplicaStory | None) -> None:
            if found is None:
                connection.refuse(_unknown())
            else:
                _respond(request, connection, msgspec.json.encode(shown_story(found)), _DATA_HEAD)

        return dispatch.replica.ask(ReplicaQuery(pool, number), use)

    def history(self, request: Request, connection: Connection, dispatch: Dispatch) -> Leave:
        """Time series of the history, read once in ten seconds for all who watch this entry."""
        name = _query(request, "span").get("span", "1h")
        span, loop = SPANS.get(name), asyncio.get_running_loop()
        if span is None:
            raise RequestError(f"span: give one of {', '.join(SPANS)}", param="span")
        at, found = self._series.get(name, (-_SERIES_SECONDS, None))
        if found is None or (found.done() and loop.time() - at > _SERIES_SECONDS):
            read = partial(series, self._folder / "history", span, time.time())
            found = loop.run_in_executor(self._thread, lambda: msgspec.json.encode(read()))
            self._series[name] = loop.time(), found
        return self._answer(found, request, connection)

    def request(self, request: Request, connection: Connection, dispatch: Dispatch) -> Leave:
        """The log lines of one request, where there are any (docs/explanation/telemetry.md)."""
        name = _query(request, "id").get("id", "")
        if not _REQUEST.fullmatch(name):
            raise RequestError("id: give the id of an answer, or what the client sent as x-request-id", param="id")

        def look() -> bytes:
            logs = self._folder / "logs"
            found = [{"file": str(path.relative_to(logs)), "line": line} for path, line in brief(logs, name)]
            return msgspec.json.encode({"id": name, "lines": found})

        return self._answer(asyncio.get_running_loop().run_in_executor(self._thread, look), request, connection)

    # --- answers, when the thread has done its part -----------------------------------------------------------

    def _answer(self, found: asyncio.Future[bytes], request: Request, connection: Connection) -> Leave:
        gone = False

        async def answer() -> None:
            try:
                body = await asyncio.shield(found)
            except Exception as error:
                if not gone:
                    connection.refuse(told(error))
            else:
                if not gone:
                    _respond(request, connection, body, _DATA_HEAD)

        def leave() -> None:
            nonlocal gone
            gone = True

        task = asyncio.get_running_loop().create_task(answer())
        self._tasks.add(task)  # the loop itself only remembers tasks weakly
        task.add_done_callback(self._tasks.discard)
        return leave


_DATA: Mapping[bytes, Callable[[Dashboard, Request, Connection, Dispatch], Leave]] = {
    DATA + b"glance": Dashboard.glance,
    DATA + b"replica": Dashboard.replica,
    DATA + b"history": Dashboard.history,
    DATA + b"request": Dashboard.request,
}


def _respond(request: Request, connection: Connection, body: bytes, head: bytes, etag: bytes = b"") -> None:
    """The body, or 304 for whoever has it already."""
    etag = etag or _etag(body)
    head += b"etag: %b\r\n" % etag
    if request.etag == etag:
        connection.respond(304, b"", head)
    else:
        connection.respond(200, body, head)


def _etag(body: bytes) -> bytes:
    return b'"%b"' % hashlib.blake2b(body, digest_size=12).hexdigest().encode()


def _query(request: Request, *known: str) -> dict[str, str]:
    """Raises RequestError: a misspelt wish must not be passed over."""
    found = request.query
    for name in found.keys() - set(known):
        raise RequestError(f"{name}: not known here; there is: {', '.join(known)}", param=name)
    return found


def _unknown() -> RequestError:
    return RequestError(
        "no broker has told anything yet: try again in a few seconds", status=503, type="server_error",
        code="no_broker",
    )  # fmt: skip


def _all(leaving: list[Leave]) -> None:
    for leave in leaving:
        if leave is not None:
            leave()


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
