"""The endpoints: who may ask, what exists, and what becomes of a body; everything else is the dispatch's."""

from __future__ import annotations

import itertools
import math
import os
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Literal

from exahpc.deployment.spec import Deployment
from exahpc.entry import metrics
from exahpc.entry.affinity import SHORTEST, Marks, marks_of
from exahpc.entry.connection import Connection
from exahpc.entry.dashboard import Dashboard
from exahpc.entry.dispatch import Dispatch
from exahpc.entry.exchange import Exchange
from exahpc.entry.http1 import Request
from exahpc.entry.keys import Keys
from exahpc.entry.ledger import Record
from exahpc.entry.library import Library
from exahpc.entry.reader import too_large
from exahpc.errors import RequestError
from exahpc.openai.body import printable, shortened
from exahpc.openai.models import model_object, models_body, version_name, version_of
from exahpc.openai.peek import peek
from exahpc.openai.peeked import Peek
from exahpc.telemetry import prometheus
from exahpc.wire.messages import FleetFigures

Kind = Literal["chat", "completion"]

_KINDS: dict[bytes, Kind] = {b"/v1/chat/completions": "chat", b"/v1/completions": "completion"}
_IDS: dict[Kind, str] = {"chat": "chatcmpl", "completion": "cmpl"}
_MODELS = b"/v1/models"
_TEXT = b"content-type: text/plain; version=0.0.4; charset=utf-8\r\n"
SCRAPER = "metrics"
"""A key whose name begins so may read /metrics and nothing else: a scraper needs no accelerators."""
_LONGEST_DEADLINE = 86_400  # seconds
_BYTES_PER_TOKEN = 4  # of JSON, roughly: only balances load
_MOST_CHOICES = 4096  # kept apart for a re-send; the agent refuses far fewer (limits.requests)


class Gateway:
    """One entry's HTTP side. `dispatch` is set when the loop runs."""

    def __init__(
        self, deployment: Deployment, keys: Keys, index: int, library: Library, dashboard: Dashboard
    ) -> None:
        self.dispatch: Dispatch
        self._library, self._dashboard = library, dashboard
        self._deployment, self._keys, self._index = deployment, keys, index
        self._limits, self._name = deployment.limits, deployment.served_name
        self._affine = deployment.routing.prefix_affinity
        self.buffer_bytes, self.body_bytes = self._limits.stream_buffer_bytes, self._limits.max_body_bytes
        self._created = int(time.time())
        self._unique, self._numbers = os.urandom(8).hex(), itertools.count()

    def admit(self, request: Request) -> None:
        """Judge a request by its head: the key, the endpoint, its method and the announced size.

        Raises RequestError. Health and the dashboard's page need no key; without one nothing else says whether it
        exists.
        """
        path = request.path
        if path not in _KINDS:
            if path == b"/health":
                _require(request, b"GET")
                return
            if self._dashboard.open(path):
                self._dashboard.admit(request)
                return
        key = self._keys.check(request.authorization)
        if key is None:
            raise RequestError(
                "this endpoint needs an API key: send the header 'Authorization: Bearer KEY'",
                status=401,
                type="authentication_error",
                code="invalid_api_key",
            )
        request.key = key
        if key.startswith(SCRAPER) and path != b"/metrics":
            message = f"the key {key!r} is for /metrics only: use another one of secrets/api_keys"
            raise RequestError(message, status=403, type="permission_error", code="metrics_key")
        if path in _KINDS:
            _require(request, b"POST")
            if request.length > self.body_bytes:
                raise too_large(request.length, self.body_bytes)
        elif path in (_MODELS, b"/metrics") or path.startswith(_MODELS + b"/"):
            _require(request, b"GET")
        elif self._library.knows(path):
            self._library.admit(request)
        elif self._dashboard.knows(path):
            self._dashboard.admit(request)
        else:
            raise RequestError(f"there is no {_shown(path)} here", status=404, code="not_found")

    def serve(self, request: Request, connection: Connection) -> Callable[[], None] | None:
        """Answer a request that was admitted and is complete; a model's answer comes later, through the dispatch.

        Returns what to call when the client leaves before that. Raises RequestError.
        """
        kind = _KINDS.get(request.path)
        if kind is not None:
            return self._complete(kind, request, connection)
        if request.path == b"/health":
            connection.respond(*self._health())
        elif request.path == b"/metrics":
            return self._metrics(request, connection)
        elif self._library.knows(request.path):
            return self._library.serve(request, connection)
        elif self._dashboard.knows(request.path):
            return self._dashboard.serve(request, connection, self.dispatch)
        else:
            connection.respond(200, self._models(_shown(request.path)))
        return None

    def _complete(self, kind: Kind, request: Request, connection: Connection) -> Callable[[], None]:
        body = request.body
        found = peek(body, kind)
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
            key=request.key,
            tier=found.tier,
            version=self._version(found.model),
            prefix=self._prefix(found),
            allowed=math.inf if request.deadline is None else _seconds(request.deadline),
            trace=request.trace,
        )
        record.client = Exchange(connection, record.id, found.stream)
        self.dispatch.open(record)
        return partial(self.dispatch.left, record)

    # --- the small endpoints ---

    def _metrics(self, request: Request, connection: Connection) -> Callable[[], None] | None:
        """This entry's counts, and if wanted the fleet's figures as soon as the broker has told them."""
        query = metrics.query_of(request.query)

        def use(figures: FleetFigures | None) -> None:
            own = metrics.text(self.dispatch.desk, self._index, self._deployment.wanted_replicas)
            connection.respond(200, own + (prometheus.page(figures) if figures else b""), _TEXT)

        if query is None:
            use(None)
            return None
        return self.dispatch.figures.ask(query, use)

    def _models(self, path: str) -> bytes:
        asked = path.removeprefix(_shown(_MODELS)).removeprefix("/")
        if not asked:
            return models_body(self._names(), self._created)
        self._version(asked)
        return model_object(asked, self._created)

    def _names(self) -> list[str]:
        """What clients may ask for: the model, and its versions once there is more than the first one."""
        labels = sorted(self.dispatch.desk.router.versions)
        return [self._name, *(version_name(self._name, label) for label in labels if any(labels))]

    def _version(self, asked: str | None) -> str | None:
        """The label of the version that a client asks for; None when any will do. Raises RequestError.

        Before any agent is known, nothing is known of versions but that there is the first one.
        """
        if asked is None or asked == self._name:
            return None
        label, known = version_of(asked, self._name), self.dispatch.desk.router.versions
        if label is not None and label in (known or {""}):
            return label
        if label is not None and not known:
            message = f"whether {shortened(asked)!r} exists is not known before a replica is up: try again"
            raise RequestError(message, status=503, type="server_error", param="model", code="no_capacity")
        names = ", ".join(map(repr, self._names()))
        message = f"the model {shortened(asked)!r} does not exist here; this deployment serves {names}"
        raise RequestError(message, status=404, param="model", code="model_not_found")

    def _prefix(self, found: Peek) -> Marks:
        return marks_of(memoryview(found.prompt)) if self._affine and found.size >= SHORTEST else ()

    def _health(self) -> tuple[int, bytes]:
        ready = self.dispatch.desk.router.ready
        asleep = self.dispatch.desk.asleep  # a load balancer must not leave us: the next request wakes a replica
        wanted = 0 if asleep else self._deployment.wanted_replicas
        word = b"ready" if ready else b"asleep" if asleep else b"not ready"
        return 200 if ready or asleep else 503, b'{"status":"%b","ready":%d,"wanted":%d}' % (word, ready, wanted)


def _shown(path: bytes) -> str:
    return path.decode("utf-8", "replace")


def _seconds(deadline: bytes) -> float:
    """Of the header x-exahpc-deadline. Raises RequestError."""
    try:
        seconds = float(deadline)
    except ValueError:
        seconds = math.nan
    if 0 < seconds <= _LONGEST_DEADLINE:
        return seconds
    raise RequestError(
        f"x-exahpc-deadline: {printable(_shown(deadline))} is no time that can be kept: give seconds from now, "
        f"above 0 and up to {_LONGEST_DEADLINE}, or leave it out",
        param="x-exahpc-deadline",
    )


def _require(request: Request, wanted: bytes) -> None:
    if request.method != wanted:
        message = f"{_shown(request.path)} takes {_shown(wanted)}, not {_shown(request.method)}"
        raise RequestError(message, status=405, code="method_not_allowed")
