"""The HTTP side of one request of a model, written to straight from the callback that brought the bytes.

No task wakes for a token: what a frame brings goes to the transport as one chunk. Writing is paused when the
transport holds more than limits.stream_buffer_bytes: that is the bounded buffer of a slow reader, and the end of
its request.
"""

from __future__ import annotations

from exahpc.entry.connection import Connection
from exahpc.errors import RequestError
from exahpc.openai.errors import sse_error

_FLUSH_SECONDS = 10.0  # for the last bytes of a slow reader
_JSON = b"content-type: application/json\r\nx-request-id: %b\r\n"
_ID = b"x-request-id: %b\r\n"
_STREAM = (
    b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\nx-accel-buffering: no\r\n"
    b"x-request-id: %b\r\n"
)


class Exchange:
    """One answer. streams: it is a sequence of events; otherwise one JSON body."""

    __slots__ = ("_connection", "_request", "_streams", "started")

    def __init__(self, connection: Connection, request: str, streams: bool) -> None:
        self._connection, self._streams = connection, streams
        self._request = request.encode()
        self.started = False

    def write(self, data: bytes) -> bool:
        """Pass on events of a stream, at once. False: the reader is too slow, nothing was written."""
        connection = self._connection
        if connection.paused:
            return False
        if self.started:
            connection.piece(data)
        else:
            connection.piece(data, self._begin())
        return True

    def comfort(self) -> None:
        """A comment in a stream that began: clients pass over it, and see that we are there."""
        if self.started and not self._connection.paused:
            self._connection.piece(b": this request waits for a replica\n\n")

    def finish(self, data: bytes) -> None:
        """The last bytes of a good answer."""
        connection = self._connection
        if connection.paused:
            self.cut("the client reads too slowly")
        elif not self._streams:
            connection.respond(200, data, _JSON % self._request)
        elif self.started:
            connection.end(data)
        else:
            connection.end(data, self._begin())

    def refuse(self, error: RequestError) -> None:
        """An error instead of the answer. Inside a stream: an error event, no [DONE], the connection closes."""
        connection = self._connection
        if connection.paused:
            self.cut(error.message)
        elif self.started:
            connection.end(sse_error(error.message, error.type, error.param, error.code))
            connection.close()
        else:
            connection.refuse(error, _ID % self._request)

    def cut(self, reason: str) -> None:
        """End a stream whose reader is too slow: the reason stands behind what it has not read yet."""
        connection = self._connection
        if self.started and not connection.transport.is_closing():
            connection.end(sse_error(reason, "server_error", None, "slow_reader"))
        connection.close()
        connection.loop.call_later(_FLUSH_SECONDS, connection.transport.abort)

    def _begin(self) -> bytes:
        self.started = True
        return self._connection.begin(_STREAM % self._request)
