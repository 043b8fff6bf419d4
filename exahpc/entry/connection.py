"""One client connection: requests in, one after the other; answers out, each piece in one write.

uvicorn accepts connections, speaks TLS and ends the server in order; this class takes the place of its ASGI
protocol, whose scope, task and events for each request took more than a third of an entry's CPU time (measured).
Nothing here waits: the application is called when a request is complete, and answers when it has something to say.

What a client sends ahead of an answer waits for its turn. Bounds on a client are kept in `reader`, and here: on
requests ahead, on unread output, and on the time it takes to send.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from exahpc.entry import http1
from exahpc.entry.http1 import Request
from exahpc.entry.reader import Reader
from exahpc.errors import RequestError

log = logging.getLogger(__name__)

REQUEST_SECONDS = 60.0
"""Longest time from the first byte of a request (or from connecting) to its last byte."""
KEEP_ALIVE_SECONDS = 75.0
"""Longest time from an answer to the next request, or to its last byte being read when none may follow."""
GOOD_BYE_SECONDS = 0.5
"""Time that an idle client has to answer TLS's good-bye when the server ends: most read only when they ask."""
MOST_AHEAD = 8
"""Requests sent ahead before we stop reading: who does not read does not notice that a client has gone."""


class Application(Protocol):
    """What a connection needs of `app.Gateway`."""

    buffer_bytes: int
    """Unsent bytes before writing counts as paused."""
    body_bytes: int

    def admit(self, request: Request) -> None:
        """Judge a request by its head. Raises RequestError."""

    def serve(self, request: Request, connection: Connection) -> Callable[[], None] | None:
        """Answer a complete request, now or later. Returns what to call if its client leaves before the end.

        Raises RequestError.
        """


class Connection(asyncio.Protocol):
    """Made by uvicorn's server for each client. paused: the client does not read, and the buffer is full."""

    _fields: ClassVar[object] = None  # header fields of all answers: uvicorn replaces the list once a second ...
    _lines: ClassVar[bytes] = b""  # ... and this is what it reads as

    def __init__(self, config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> None:
        self._app: Application = config.app
        self._server = server_state
        self.loop = _loop or asyncio.get_running_loop()
        self.transport: Any = None
        self.paused = False
        self._reader = Reader(self, self._app.body_bytes)
        self._deaf = False  # what comes from now on is no request
        self._current: Request | None = None  # whose turn it is to be answered
        self._ahead: deque[Request] = deque()  # sent before the current one was answered
        self._left: Callable[[], None] | None = None
        self._awaits_taken: asyncio.Future[None] | None = None
        self._deadline = self.loop.time() + REQUEST_SECONDS

    # --- the transport ---

    def connection_made(self, transport: Any) -> None:
        transport.set_write_buffer_limits(high=self._app.buffer_bytes)  # uvloop sets TCP_NODELAY itself
        self.transport = transport
        self._server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        self._deaf = True
        self._reader.close()
        self._forget_ahead()
        left, self._left = self._left, None
        if left is not None:
            left()
        self.resume_writing()

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        awaited, self._awaits_taken = self._awaits_taken, None
        if awaited is not None and not awaited.done():
            awaited.set_result(None)

    async def taken(self) -> None:
        """While paused: wait until the client has read enough for more, or has left. One waits at a time."""
        if self.paused:
            self._awaits_taken = self.loop.create_future()
            await self._awaits_taken

    def data_received(self, data: bytes) -> None:
        if not self._deaf and (error := self._reader.feed(data)) is not None:
            self._broken(error)

    def _forget_ahead(self) -> None:
        for request in self._ahead:
            if request.sink is not None:
                request.sink.abort()
        self._ahead.clear()

    def _broken(self, error: RequestError) -> None:
        """Nothing that comes from now on can be understood. What is being answered is answered to its end."""
        self._deaf = True
        self._forget_ahead()
        request = self._current
        if request is None:
            request = self._current = Request(b"", b"/", {})
        request.keep_alive = False
        if request.answered:
            self.transport.close()
        elif not request.complete:
            self.refuse(error)

    # --- the reader ---

    def begins(self) -> None:
        self._deadline = self.loop.time() + REQUEST_SECONDS

    def head(self, request: Request) -> None:
        if request.error is None:
            try:
                self._app.admit(request)
            except RequestError as error:
                request.error = error
        if self._current is None:
            self._turn(request)
        else:
            self._ahead.append(request)
            if len(self._ahead) > MOST_AHEAD:
                self.transport.pause_reading()

    def too_large(self, request: Request) -> None:
        if request is self._current and request.error is not None:
            self.refuse(request.error)

    def part(self, request: Request, data: bytes) -> None:
        if request.sink is not None:
            request.sink.feed(data, self)

    def whole(self, request: Request) -> None:
        if request is self._current:
            if request.answered:
                self._proceed()
            else:
                self._serve(request)

    # --- a body that is too large for memory (see `http1.Sink`) ---

    def hold(self, holding: bool) -> None:
        """Read no more from the client, or go on."""
        if self.transport.is_closing():
            return
        if holding:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def more_time(self) -> None:
        self._deadline = self.loop.time() + REQUEST_SECONDS

    def turned_down(self, request: Request, error: RequestError) -> None:
        """What takes a body refuses it: the rest of it is read past."""
        if not request.complete and not request.answered:
            request.error = error
            self.too_large(request)

    # --- one request after the other ---

    def _turn(self, request: Request) -> None:
        """It is the one to be answered now."""
        self._current = request
        if request.error is not None:
            request.keep_alive &= not request.expects  # whether its body will come is anybody's guess
            self.refuse(request.error)
        elif request.complete:
            self._serve(request)
        elif request.expects:
            self.transport.write(http1.CONTINUE)

    def _serve(self, request: Request) -> None:
        try:
            self._left = self._app.serve(request, self)
        except RequestError as error:
            self.refuse(error)
        except Exception:
            log.exception("a request failed")
            request.keep_alive = False
            self.refuse(RequestError("internal error", status=500, type="server_error"))

    def _proceed(self) -> None:
        """The current request is complete and answered."""
        self._current = None
        self._deadline = self.loop.time() + KEEP_ALIVE_SECONDS
        if self._ahead:
            self._current = self._ahead.popleft()
            self.loop.call_soon(self._go_on)  # not at once: there may be thousands

    def _go_on(self) -> None:
        if self._current is not None and not self.transport.is_closing():
            if len(self._ahead) <= MOST_AHEAD:
                self.transport.resume_reading()
            self._turn(self._current)

    def expire(self, now: float) -> None:
        """Close if the client takes too long: to send its request, or the next one, or to read its last bytes."""
        request = self._current
        if now > self._deadline and (request is None or request.answered or not request.complete):
            if self.transport.is_closing():
                self.transport.abort()
            else:
                self.transport.close()

    def shutdown(self) -> None:
        """The server ends: finish what is being answered, then close. uvicorn calls this."""
        if self._current is not None and not self._current.answered:
            self._current.keep_alive = False
            return
        self.transport.close()
        if not self.transport.get_write_buffer_size():
            self.loop.call_later(GOOD_BYE_SECONDS, self.transport.abort)

    # --- answers to the current request ---

    def respond(self, status: int, body: bytes, head: bytes = http1.JSON) -> None:
        """A whole answer. head: header lines."""
        request = self._asked()
        self.transport.write(http1.whole(request, status, self._common(), head, body))
        self._answered(request)

    def refuse(self, error: RequestError, head: bytes = b"") -> None:
        """An error as a whole answer. head: more header lines."""
        request = self._asked()
        self.transport.write(http1.error(request, error, self._common(), head))
        self._answered(request)

    def begin(self, head: bytes) -> bytes:
        """Begin an answer that comes piece by piece. Returns its head, to go with the first piece."""
        return http1.begin(self._asked(), self._common(), head)

    def piece(self, data: bytes, before: bytes = b"") -> None:
        """Part of an answer that was begun. before: what `begin` returned."""
        request = self._asked()
        if request.legacy:
            self.transport.write(before + data)
        else:
            self.transport.write(b"%b%x\r\n%b\r\n" % (before, len(data), data))

    def end(self, data: bytes, before: bytes = b"") -> None:
        """The last part of an answer that was begun."""
        request = self._asked()
        self.transport.write(http1.last(request, data, before))
        self._answered(request)

    def close(self) -> None:
        """Close when what was written is sent."""
        self.transport.close()

    def _asked(self) -> Request:
        assert self._current is not None, "an answer to nobody"
        return self._current

    def _answered(self, request: Request) -> None:
        request.answered = True
        self._left = None
        if not request.keep_alive:
            self._deaf = True
            self._deadline = self.loop.time() + KEEP_ALIVE_SECONDS
            self.transport.close()
        elif request.complete:
            self._proceed()

    def _common(self) -> bytes:
        fields = self._server.default_headers
        if fields is not Connection._fields:
            Connection._fields = fields
            Connection._lines = b"".join(b"%b: %b\r\n" % field for field in fields)
        return Connection._lines
