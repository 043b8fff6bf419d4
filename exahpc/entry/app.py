"""The ASGI application: who may ask, which endpoint it is, and the body; everything else is the dispatch's.

The task that uvicorn starts for a request reads the body, hands the request over, and then waits in `receive()`:
that returns when the answer is complete or the client has gone, so one task and two awaits serve any stream.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from exahpc.deployment.spec import Deployment
from exahpc.entry import metrics
from exahpc.entry.dispatch import Dispatch
from exahpc.entry.exchange import Exchange, error_response
from exahpc.entry.keys import Keys
from exahpc.entry.ledger import Record
from exahpc.errors import RequestError
from exahpc.openai.models import model_object, models_body
from exahpc.openai.peek import peek

log = logging.getLogger(__name__)

Kind = Literal["chat", "completion"]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

_KINDS: dict[str, Kind] = {"/v1/chat/completions": "chat", "/v1/completions": "completion"}
_IDS: dict[Kind, str] = {"chat": "chatcmpl", "completion": "cmpl"}
_MODELS = "/v1/models"
_BYTES_PER_TOKEN = 4  # of JSON, roughly: only balances load
_MOST_CHOICES = 4096  # kept apart for a re-send; the agent refuses far fewer (limits.requests)


class Gateway:
    """One entry's HTTP side. `dispatch` is set when the loop runs."""

    def __init__(self, deployment: Deployment, keys: Keys, index: int) -> None:
        self.dispatch: Dispatch
        self._deployment, self._keys, self._index = deployment, keys, index
        self._limits, self._name = deployment.limits, deployment.served_name
        self._created = int(time.time())
        self._unique, self._numbers = os.urandom(8).hex(), itertools.count()

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        try:
            await self._serve(scope, receive, send)
        except RequestError as error:
            await _answer(send, *error_response(error))

    async def _serve(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        if path == "/health":
            _require(method, "GET", path)
            await self._health(send)
            return
        authorization = length = None
        for name, value in scope["headers"]:
            if name == b"authorization":
                authorization = value
            elif name == b"content-length":
                length = value
        if self._keys.check(authorization) is None:
            raise RequestError(
                "this endpoint needs an API key: send the header 'Authorization: Bearer KEY'",
                status=401,
                type="authentication_error",
                code="invalid_api_key",
            )
        kind = _KINDS.get(path)
        if kind is not None:
            _require(method, "POST", path)
            body = await self._body(receive, int(length) if length else 0)
            if body is not None:
                await self._complete(kind, body, scope, receive, send)
        elif path == _MODELS or path.startswith(_MODELS + "/"):
            _require(method, "GET", path)
            await _answer(send, 200, self._models(path), [])
        elif path == "/metrics":
            _require(method, "GET", path)
            page = metrics.text(self.dispatch.desk, self._index, self._deployment.wanted_replicas)
            await _answer(send, 200, page, [], b"text/plain; version=0.0.4; charset=utf-8")
        else:
            raise RequestError(f"there is no {path} here", status=404, code="not_found")

    # --- completions ---

    async def _body(self, receive: Receive, declared: int) -> bytes | None:
        """The whole body; None when the client left before it was here. Bounded in size here, in time by the
        connection."""
        most = self._limits.max_body_bytes
        if declared > most:
            raise _too_large(declared, most)
        parts: list[bytes] = []
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message["body"])
            more = message["more_body"]
            size += len(parts[-1])
            if size > most:
                raise _too_large(size, most)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _complete(
        self, kind: Kind, body: bytes, scope: dict[str, Any], receive: Receive, send: Send
    ) -> None:
        found = peek(body, kind)
        if found.model is not None and found.model != self._name:
            raise _unknown_model(found.model, self._name)
        limits = self._limits
        most = min(found.max_tokens or limits.max_tokens_default, self._deployment.model.context)
        choices = min(found.n, _MOST_CHOICES)
        record = Record(
            f"{_IDS[kind]}-{self._unique}{next(self._numbers):06x}",
            kind,
            body,
            stream=found.stream,
            seed=random.getrandbits(62),
            created=int(time.time()),
            choices=choices,
            prompt=found.size // _BYTES_PER_TOKEN,
            new=most * choices,
        )
        record.client = Exchange(scope["connection"], send, record.id, found.stream)
        dispatch = self.dispatch
        dispatch.open(record)
        try:
            while (await receive())["type"] != "http.disconnect":
                pass
        except asyncio.CancelledError:  # this entry ends, and its grace is over
            dispatch.abandon(record, RequestError("this server is shutting down", status=503, type="server_error"))
            raise
        if record.phase != "ended":
            dispatch.left(record)

    # --- the small endpoints ---

    def _models(self, path: str) -> bytes:
        if path == _MODELS:
            return models_body(self._name, self._created)
        asked = path.removeprefix(_MODELS + "/")
        if asked != self._name:
            raise _unknown_model(asked, self._name)
        return model_object(self._name, self._created)

    async def _health(self, send: Send) -> None:
        ready, wanted = self.dispatch.desk.router.ready, self._deployment.wanted_replicas
        word = b"ready" if ready else b"not ready"
        body = b'{"status":"%b","ready":%d,"wanted":%d}' % (word, ready, wanted)
        await _answer(send, 200 if ready else 503, body, [])


def _require(method: str, wanted: str, path: str) -> None:
    if method != wanted:
        raise RequestError(f"{path} takes {wanted}, not {method}", status=405, code="method_not_allowed")


def _too_large(size: int, most: int) -> RequestError:
    message = f"the request body has {size} bytes or more; at most {most} are taken (limits.max_body_bytes)"
    return RequestError(message, status=413, code="body_too_large")


def _unknown_model(asked: str, served: str) -> RequestError:
    message = f"the model {asked!r} does not exist here; this deployment serves {served!r}"
    return RequestError(message, status=404, param="model", code="model_not_found")


async def _answer(
    send: Send,
    status: int,
    body: bytes,
    headers: list[tuple[bytes, bytes]],
    kind: bytes = b"application/json",
) -> None:
    head = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})
