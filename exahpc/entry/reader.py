"""From bytes to requests: httptools' callbacks, and the bounds on what a client sends."""

from __future__ import annotations

import logging
from typing import Any, Protocol

import httptools

from exahpc.entry.http1 import WANTED, Request
from exahpc.errors import RequestError

log = logging.getLogger(__name__)

MAX_HEAD_BYTES = 65536


class Owner(Protocol):
    """Who is told of requests: for each `begins`, `head`, then `part`s and `too_large` perhaps, then `whole`."""

    def begins(self) -> None:
        """The first byte of a request came."""

    def head(self, request: Request) -> None:
        """Its head is here. Sets `error` when its body is of no interest."""

    def part(self, request: Request, data: bytes) -> None:
        """Part of its body, which `sink` takes."""

    def too_large(self, request: Request) -> None:
        """Its body exceeds the bound; `error` says so, the rest of it is read past."""

    def whole(self, request: Request) -> None:
        """Its last byte is here."""


class Reader:
    """Reads the requests of one connection. body_bytes: bound on a body."""

    def __init__(self, owner: Owner, body_bytes: int) -> None:
        self._owner, self._body_bytes = owner, body_bytes
        self._parser: Any = httptools.HttpRequestParser(self)
        self._target = b""
        self._head: dict[bytes, bytes] | None = None  # while a head is being read
        self._head_bytes = 0
        self._request: Request | None = None  # its head is here, its body is not
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> RequestError | None:
        """Returns what is wrong with the bytes: nothing that comes behind them is a request."""
        head = self._head
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            return self._again_without_offer(data[offer.args[0] :])
        except httptools.HttpParserCallbackError:
            log.exception("a request cannot be read")
            return RequestError("internal error", status=500, type="server_error")
        except httptools.HttpParserError:
            return RequestError("this is no request of HTTP/1.1", code="bad_http")
        if head is not None and head is self._head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                message = f"the head of a request has at most {MAX_HEAD_BYTES} bytes here"
                return RequestError(message, status=431, code="head_too_large")
        return None

    def _again_without_offer(self, rest: bytes) -> RequestError | None:
        """Pass over an offer to upgrade (some clients offer HTTP/2 with every request).

        The parser takes all that follows such a head, the body too, for the other protocol: it is asked to read
        the head once more, without the offer.
        """
        method = self._parser.get_method()
        if method == b"CONNECT":
            return RequestError("this server is no proxy: CONNECT is not taken", code="bad_http")
        fields = b"".join(b"%b: %b\r\n" % field for field in (self._head or {}).items())
        self._parser = httptools.HttpRequestParser(self)
        return self.feed(b"%b %b HTTP/1.1\r\n%b\r\n%b" % (method, self._target, fields, rest))

    def close(self) -> None:
        """Nothing comes any more."""
        self._parser = None  # it holds us
        if self._request is not None and self._request.sink is not None:
            self._request.sink.abort()

    # --- what the parser calls ---

    def on_message_begin(self) -> None:
        self._target, self._head, self._head_bytes = b"", {}, 0
        self._owner.begins()

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in WANTED and self._head is not None:  # None: a field behind the body
            self._head[name] = value

    def on_headers_complete(self) -> None:
        parser = self._parser
        if parser.should_upgrade():
            return  # see _again_without_offer
        request = Request(parser.get_method(), self._target, self._head or {})
        self._head, self._request = None, request
        request.legacy = parser.get_http_version() != "1.1"
        request.keep_alive = parser.should_keep_alive() and not request.legacy
        self._owner.head(request)

    def on_body(self, data: bytes) -> None:
        request = self._request
        if request is None or request.error is not None:
            return
        if request.sink is not None:
            self._owner.part(request, data)
            return
        self._parts.append(data)
        self._size += len(data)
        if self._size > self._body_bytes:
            request.error = too_large(self._size, self._body_bytes)
            self._owner.too_large(request)

    def on_message_complete(self) -> None:
        request, parts = self._request, self._parts
        self._request, self._parts, self._size = None, [], 0
        if request is not None:
            request.body = parts[0] if len(parts) == 1 else b"".join(parts)
            request.complete = True
            self._owner.whole(request)


def too_large(size: int, most: int) -> RequestError:
    """413."""
    message = f"the request body has {size} bytes or more; at most {most} are taken (limits.max_body_bytes)"
    return RequestError(message, status=413, code="body_too_large")
