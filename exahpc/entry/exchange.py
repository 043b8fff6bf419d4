"""The HTTP side of one request, written to straight from the callback that brought the bytes.

No task wakes for a token: `send` of uvicorn suspends only while writing is paused, so as long as it is not, its
coroutine runs to its end in one step here. Writing is paused when the transport holds more than
limits.stream_buffer_bytes: that is the bounded buffer of a slow reader, and the end of its request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, cast

from exahpc.entry.connection import Connection
from exahpc.errors import RequestError
from exahpc.openai.errors import error_body, sse_error

Send = Callable[[Any], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

_FLUSH_SECONDS = 10.0  # for the last bytes of a slow reader
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Exchange:
    """One answer. streams: it is a sequence of events; otherwise one JSON body."""

    __slots__ = ("_connection", "_request", "_send", "_streams", "started")

    def __init__(self, connection: Connection, send: Send, request: str, streams: bool) -> None:
        self._connection, self._send = connection, send
        self._request, self._streams = request.encode(), streams
        self.started = False

    @property
    def slow(self) -> bool:
        """The client does not read, and the buffer is full."""
        return self._connection.flow.write_paused

    def write(self, data: bytes) -> bool:
        """Pass on events of a stream, at once. False: the reader is too slow, nothing was written."""
        connection = self._connection
        if connection.flow.write_paused:
            return False
        if not self.started:
            self._start(200, [*_STREAM_HEADERS, (b"x-request-id", self._request)])
        # what uvicorn's send would write, without a coroutine for each token (measured: a third of the CPU time)
        connection.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    def finish(self, data: bytes) -> None:
        """The last bytes of a good answer."""
        if self._connection.flow.write_paused:
            self.cut("the client reads too slowly")
        elif self._streams:
            if not self.started:
                self._start(200, [*_STREAM_HEADERS, (b"x-request-id", self._request)])
            _step(self._send({"type": "http.response.body", "body": data}))
        else:
            self._whole(200, data, [(b"x-request-id", self._request)])

    def refuse(self, error: RequestError) -> None:
        """An error instead of the answer. Inside a stream: an error event, no [DONE], the connection closes."""
        if self._connection.flow.write_paused:
            self.cut(error.message)
        elif self.started:
            data = sse_error(error.message, error.type, error.param, error.code)
            _step(self._send({"type": "http.response.body", "body": data}))
            self._connection.transport.close()
        else:
            self._whole(*error_response(error), more=[(b"x-request-id", self._request)])

    def cut(self, reason: str) -> None:
        """End a stream whose reader is too slow: the reason stands behind what it has not read yet."""
        transport = self._connection.transport
        if self.started and not transport.is_closing():
            data = sse_error(reason, "server_error", None, "slow_reader")
            transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data))
        transport.close()
        self._connection.loop.call_later(_FLUSH_SECONDS, transport.abort)

    def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.started = True
        _step(self._send({"type": "http.response.start", "status": status, "headers": headers}))

    def _whole(self, status: int, data: bytes, headers: Headers, more: Headers = ()) -> None:
        self._start(
            status,
            [
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(data)),
                *headers,
                *more,
            ],
        )
        _step(self._send({"type": "http.response.body", "body": data}))


def error_response(error: RequestError) -> tuple[int, bytes, list[tuple[bytes, bytes]]]:
    """Status, body and special headers of an error outside a stream."""
    headers = []
    if error.status in (429, 503):
        headers.append((b"retry-after", b"2"))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return error.status, error_body(error.message, error.type, error.param, error.code), headers


def _step(sending: Awaitable[None]) -> None:
    """Run a send that does not wait."""
    coroutine = cast("Coroutine[Any, Any, None]", sending)
    try:
        coroutine.send(None)
    except StopIteration:
        return
    coroutine.close()  # uvicorn waits although writing is not paused: a defect, and bytes would be lost
    raise RuntimeError("the HTTP server wanted to wait inside a write")
