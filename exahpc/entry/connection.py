"""uvicorn's HTTP connection with bounds: on unread output, on the time to send a request, and errors as JSON.

The application finds the connection in its scope (`scope["connection"]`), to write without waiting.
"""

from __future__ import annotations

import math
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from exahpc.openai.errors import error_body

REQUEST_SECONDS = 60.0
"""Longest time from the first byte of a request (or from connecting) to its last byte."""


class Connection(HttpToolsProtocol):
    """One client connection. buffer_bytes: unsent bytes before writing counts as paused."""

    buffer_bytes = 2**20
    deadline = math.inf

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        # uvloop sets TCP_NODELAY itself; only the bound on unread output is ours
        transport.set_write_buffer_limits(high=self.buffer_bytes)
        self.deadline = self.loop.time() + REQUEST_SECONDS

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["connection"] = self  # type: ignore[typeddict-unknown-key]
        self.deadline = self.loop.time() + REQUEST_SECONDS

    def on_message_complete(self) -> None:
        self.deadline = math.inf
        super().on_message_complete()

    def overdue(self, now: float) -> bool:
        """The client takes too long to send its request. Not so when we do not read it."""
        return now > self.deadline and not self.flow.read_paused

    def send_400_response(self, msg: str) -> None:
        body = error_body(msg, "invalid_request_error", None, "bad_http")
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        if self.cycle is None or self.cycle.response_complete:  # else it would fall into a running answer
            self.transport.write(STATUS_LINE[400] + head + body)
        self.transport.close()


def bounded(buffer_bytes: int) -> type[Connection]:
    """The connection class with this bound on unread output."""
    return type("BoundedConnection", (Connection,), {"buffer_bytes": buffer_bytes})
