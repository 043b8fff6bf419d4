"""Requests and answers of HTTP/1.1 as values and bytes. Pure; `connection` moves them."""

from __future__ import annotations

import http
from functools import lru_cache
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote_to_bytes

import httptools

from exahpc.errors import RequestError
from exahpc.openai.errors import error_body
from exahpc.telemetry.stories import trace_of

JSON = b"content-type: application/json\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
WANTED = frozenset(
    (
        b"authorization",
        b"content-length",
        b"content-type",
        b"expect",
        b"if-none-match",
        b"traceparent",
        b"transfer-encoding",
        b"x-exahpc-deadline",
        b"x-request-id",
    )
)
"""Header fields that a request keeps."""

_STATUS = {status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in http.HTTPStatus}
_CLOSE = b"connection: close\r\n"
_RETRY = b"retry-after: %d\r\n"
_RETRY_SECONDS = 2  # where nobody has a better idea
_FINAL = b"x-should-retry: false\r\n"  # OpenAI's clients ask again by themselves after 5xx, unless told so
_BEARER = b"www-authenticate: Bearer\r\n"


class Sink(Protocol):
    """What takes a body that is not kept in memory."""

    def feed(self, data: bytes, client: Any) -> None:
        """The next bytes. client: the connection that they come from."""

    def abort(self) -> None:
        """No more will come. No error when all came."""


class Request:
    """What a client asks, and how far it is.

    path: without the query, percent signs decoded; key: name of the API key, once it is known; deadline: field
    x-exahpc-deadline as sent; trace: what the client calls it; etag: the answer that the client has already (field
    if-none-match); length: announced size of the body in bytes; expects: the client waits for "100 Continue";
    keep_alive: the connection stays open after the answer; legacy: HTTP/1.0, which knows no chunks: a stream ends
    with its connection; body: whole when `complete`, or empty where a `sink` takes it; error: why its head or size
    refused it; answered: the last byte of its answer was written.
    """

    __slots__ = (
        "answered",
        "authorization",
        "body",
        "complete",
        "content_type",
        "deadline",
        "error",
        "etag",
        "expects",
        "keep_alive",
        "key",
        "legacy",
        "length",
        "method",
        "path",
        "sink",
        "target",
        "trace",
    )

    def __init__(self, method: bytes, target: bytes, head: dict[bytes, bytes]) -> None:
        """target: as sent; head: the fields of WANTED, names in lower case."""
        self.method, self.target, self.path = method, target, _path(target)
        self.authorization, self.key = head.get(b"authorization"), ""
        self.deadline = head.get(b"x-exahpc-deadline")
        self.trace = trace_of(head.get(b"traceparent"), head.get(b"x-request-id"))
        self.content_type, self.etag = head.get(b"content-type"), head.get(b"if-none-match")
        self.length = int(head.get(b"content-length", 0))
        self.expects = b"expect" in head
        self.keep_alive, self.legacy = True, False
        self.body = b""
        self.complete = self.answered = False
        self.error: RequestError | None = None
        self.sink: Sink | None = None

    @property
    def query(self) -> dict[str, str]:
        """What stands behind the question mark; of a name that comes twice, the last."""
        text = self.target.partition(b"?")[2].decode("utf-8", "replace")
        return dict(parse_qsl(text, keep_blank_values=True))


@lru_cache(256)
def _path(target: bytes) -> bytes:
    if target[:1] == b"/" and b"?" not in target and b"%" not in target:
        return target
    try:
        return unquote_to_bytes(httptools.parse_url(target).path or b"/")
    except httptools.HttpParserInvalidURLError:  # "*", or the host and port of a CONNECT
        return target


def whole(request: Request, status: int, common: bytes, head: bytes, body: bytes) -> bytes:
    """An answer of known length, or 304. common, head: header lines; the length and "close" are added."""
    close = b"" if request.keep_alive else _CLOSE
    shown = b"" if request.method == b"HEAD" else body
    length = b"" if status == 304 else b"content-length: %d\r\n" % len(body)
    return b"%b%b%b%b%b\r\n%b" % (_STATUS[status], common, head, length, close, shown)


def error(request: Request, found: RequestError, common: bytes, head: bytes = b"") -> bytes:
    """An error as an answer of its own."""
    head += JSON
    if found.final:
        head += _FINAL
    elif found.status in (429, 503):
        head += _RETRY % (_RETRY_SECONDS if found.retry_after is None else found.retry_after)
    elif found.status == 401:
        head += _BEARER
    body = error_body(found.message, found.type, found.param, found.code)
    return whole(request, found.status, common, head, body)


def begin(request: Request, common: bytes, head: bytes) -> bytes:
    """The head of an answer that comes piece by piece."""
    close = b"" if request.keep_alive else _CLOSE
    chunked = b"" if request.legacy else b"transfer-encoding: chunked\r\n"
    return b"%b%b%b%b%b\r\n" % (_STATUS[200], common, head, chunked, close)


def last(request: Request, data: bytes, before: bytes = b"") -> bytes:
    """The last piece, which may be empty."""
    if request.legacy:
        return before + data
    if not data:
        return before + b"0\r\n\r\n"
    return b"%b%x\r\n%b\r\n0\r\n\r\n" % (before, len(data), data)
